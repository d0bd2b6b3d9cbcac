# tp: checkpoint resharding and tensor-parallel training, in C. `make help` lists the targets.
.DEFAULT_GOAL := all
comma := ,
empty :=
space := $(empty) $(empty)

VERSION := 0.1.0
PREFIX  ?= /usr/local
PYTHON  ?= /usr/bin/python3
JOBS    ?= $(shell nproc 2>/dev/null || echo 2)
ifeq ($(origin CC),default)
CC      := gcc
endif
NVCC    ?= $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

# Knobs: SANITIZE=address,undefined and CC=clang build in folders of their own, beside the plain
# build; WERROR=1 makes warnings errors; V=1 shows the commands.
SANITIZE ?=
# With a sanitizer -O3 takes more than twice as long to compile, and the programs are no faster. Its reports need no more than
# lines (-g1), and without the rest programs are linked in a fourth of the time; .ci/run builds all programs so.
DEBUG    ?= $(if $(SANITIZE),-g1,-g)
CFLAGS   ?= $(if $(SANITIZE),-O1,-O3) $(DEBUG)
FLAVOUR  := $(if $(SANITIZE),san-$(subst $(comma),-,$(SANITIZE)),plain)$(if \
              $(filter-out gcc,$(CC)),-$(notdir $(firstword $(CC))))
BUILD    := build/$(FLAVOUR)
BIN      := $(if $(filter plain,$(FLAVOUR)),bin,$(BUILD)/bin)
LIB      := $(patsubst %bin,%lib,$(BIN))
Q        := $(if $(V),,@)

# Use every processor unless -j says otherwise, but make several goals in order (make clean all), if they do more than build.
MORE_THAN_BUILT := $(if $(word 2,$(MAKECMDGOALS)),$(filter-out all tests unit benches,$(MAKECMDGOALS)))
ifeq ($(MAKELEVEL)$(MORE_THAN_BUILT),0)
MAKEFLAGS += -j$(JOBS)
endif
MAKEFLAGS += --no-print-directory

# ---- what is compiled, and how --------------------------------------------------------------

FOLDERS  := core layout torch device kernels comm storage ckpt reshard trainer progress orchestrator
PACKAGES := jansson hdf5-serial libcrypto libisal libzstd ompi-c yaml-0.1 libmicrohttpd libcurl

PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
# Fuzzing instruments loops, which are then not vectorized, as clang warns.
SAN_FLAGS  := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
                -fno-omit-frame-pointer -DTP_SANITIZE) $(if $(findstring fuzzer,$(SANITIZE)),-Wno-pass-failed)
WARNINGS   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 \
              -Wundef
TP_CFLAGS  := -std=c11 -D_GNU_SOURCE -DTP_VERSION='"$(VERSION)"' -I. $(WARNINGS) -fopenmp \
              -isystem /usr/include/hdf5/serial $(subst -I,-isystem ,$(PKG_CFLAGS)) $(SAN_FLAGS)
ALL_CFLAGS := $(TP_CFLAGS) $(CFLAGS)
# $(call compile,COMMAND) compiles $< to $@. -Werror changes no object, so builds with and without WERROR share them. An
# object that was compiled with warnings has a file with these beside it, and WERROR=1 compiles it again.
compile = $(Q)$1 $(if $(MAKE_TERMERR),-fdiagnostics-color=always) $(if $(WERROR),-Werror) -c $< -o $@ 2>$@.warnings; \
          code=$$?; cat $@.warnings >&2; [ -s $@.warnings ] || rm -f $@.warnings; exit $$code
# The vector loops need these (kernels/cpu/vec.h explains them); they change no result.
KERNEL_FLAGS := -fno-math-errno -fno-trapping-math -ffp-contract=fast
LIBS       := $(PKG_LIBS) -ldnnl -lm -lpthread -ldl

LIB_SRC  := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c $(d)/*/*.c $(d)/*/*/*.c))
CLI_SRC  := $(wildcard cli/*.c cli/*/*.c)
C_FILES  := $(foreach d,$(FOLDERS) cli tests packaging,$(foreach e,c h cu cuh cc, \
              $(wildcard $(d)/*.$(e) $(d)/*/*.$(e) $(d)/*/*/*.$(e))))

# Every program as NAME=MAIN: its name in the build folder and the file of its main().
# NAME=MAIN,FOLDER may also use FOLDER, whose functions replace the product's.
programs_of = $(foreach f,$(wildcard $2),$1$(notdir $(basename $f))=$f)
names_of    = $(foreach p,$1,$(firstword $(subst =, ,$p)))
PRODUCT  := $(patsubst tp_%,tp-%,$(call programs_of,,cli/*/tp_*.c))
TESTS    := $(patsubst %,%$(comma)tests/deferred,$(call programs_of,tests/,tests/unit/*.c)) \
            $(call programs_of,tests/mpi/,tests/mpi/*.c) $(call programs_of,tests/,tests/fixture/*.c)
FUZZ     := $(call programs_of,fuzz/,tests/fuzz/*.c)
BENCH    := $(call programs_of,bench/,tests/bench/*.c)
VARIANTS := tests/tp-train-deferred=cli/train/tp_train.c,tests/deferred
# Variants that print their option tables; manual pages and completions are generated from them.
DESCRIBE := $(PRODUCT:%=describe/%,packaging/describe)
LINKED   := $(PRODUCT) $(TESTS) $(FUZZ) $(BENCH) $(VARIANTS) $(DESCRIBE) \
            gpu_check=tests/gpu/gpu_check.cu libtp-progress=progress/tp_progress.c
PROGRAMS := $(call names_of,$(PRODUCT))
# Preloaded into programs by tests of faults.
SHIM     := $(patsubst tests/fault/%.c,$(BUILD)/tests/fault/%.so,$(filter-out %/preload.c,$(wildcard tests/fault/*.c)))

## all           build the programs into bin/ (plain `make` does this; it never installs anything)
all: $(PROGRAMS:%=$(BIN)/%) $(LIB)/libtp-progress.so $(LIB)/libtp-progress.a

# Which source files each program is linked from, found in the sources: uses_NAME := layout/box ...
include build/uses.mk
build/uses.mk: tools/link.awk build/sources $(C_FILES)
	@awk -f tools/link.awk $(LINKED) -- $(filter-out tests/%.c packaging/%.c %.cu %.cc,$(C_FILES)) \
	  $(wildcard $(foreach v,$(VARIANTS) $(DESCRIBE),$(lastword $(subst $(comma), ,$(v)))/*.c)) >$@
build/sources: FORCE
	@mkdir -p build
	@echo '$(LINKED) $(C_FILES)' | cmp -s - $@ || echo '$(LINKED) $(C_FILES)' >$@

objects = $(patsubst %,$(BUILD)/%.o,$(uses_$1))
# Only the libraries that a program uses are loaded when it starts.
LINK = $(CC) $(ALL_CFLAGS) $(filter %.o,$^) $(LDFLAGS) -Wl,--as-needed

.SECONDEXPANSION:
$(PROGRAMS:%=$(BIN)/%): $(BIN)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) $(LIBS) -o $@

$(BUILD)/kernels/cpu/%.o: ALL_CFLAGS += $(KERNEL_FLAGS)
# The code of tests is compiled faster; what it tests is not changed.
$(BUILD)/tests/unit/%.o $(BUILD)/tests/fixture/%.o $(BUILD)/tests/mpi/%.o: private ALL_CFLAGS := $(patsubst -O3,-O1,$(ALL_CFLAGS))
$(BUILD)/%.o: %.c $(BUILD)/.flags | $(BUILD)/.tools
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(call compile,$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -MMD -MP)

# libtp-progress: the five calls with which any trainer reports its progress to tp-run. It needs
# libc alone, and exports nothing else.
SONAME   := libtp-progress.so.$(firstword $(subst ., ,$(VERSION)))
pic = $(patsubst %,$(BUILD)/pic/%.o,$(uses_libtp-progress))
$(BUILD)/pic/%.o: %.c $(BUILD)/.flags | $(BUILD)/.tools
	@mkdir -p $(@D)
	@echo "  CC    $< (libtp-progress)"
	$(call compile,$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -MMD -MP)

$(LIB)/libtp-progress.so: $$(pic)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) $^ -o $@.$(VERSION)
	@ln -sf $(@F).$(VERSION) $(@D)/$(SONAME) && ln -sf $(SONAME) $@

$(LIB)/libtp-progress.a: $$(pic)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LD) -r $^ -o $(BUILD)/pic/libtp-progress.o
	$(Q)objcopy --localize-hidden $(BUILD)/pic/libtp-progress.o
	@rm -f $@
	$(Q)$(AR) rcs $@ $(BUILD)/pic/libtp-progress.o

$(BUILD)/orchestrator/web/status_page.o: orchestrator/web/status_page.html

# Prints once per build folder which compiler, header or library is missing, and its package.
$(BUILD)/.tools:
	@CC='$(CC)' tools/setup.sh --check build
	@mkdir -p $(@D) && touch $@

# When the flags change, everything is compiled again.
$(BUILD)/.flags: FORCE | $(BUILD)/.tools
	@echo '$(CC) $(subst ','\'',$(ALL_CFLAGS))' | cmp -s - $@ || \
	  echo '$(CC) $(subst ','\'',$(ALL_CFLAGS))' > $@

# ---- CUDA -----------------------------------------------------------------------------------

# The library libtp-cuda.so has the CUDA device, its kernels and collectives over NCCL
# (comm/cuda/library.h). It is built twice: by nvcc for GPUs, and by clang for the fake CUDA device,
# on which it is tested.
CUDA_C     := $(basename $(wildcard device/cuda/*.c)) device/device device/failure kernels/cuda/cuda \
              core/background_thread core/err core/thread_pool layout/dtype \
              $(addprefix comm/cuda/,exports nccl_transport nccl_lane nccl_exchange nccl_watch nccl_failure)
CUDA_CU    := $(basename $(wildcard kernels/cuda/*.cu))
CUDA_FILES  = $(patsubst %,$1/%.o,$(CUDA_C) $(CUDA_CU))
CUDA_INCLUDE := $(dir $(NVCC))../include
# NVIDIA's toolkit has no NCCL, and a small one no cuBLAS. What is neither beside nvcc nor in the system's folders may have
# come with PyTorch: PyPI's packages have folders of their own, and libraries without links for the linker.
CUDA_SYSTEM := /usr/include /usr/local/include
has_header  = $(wildcard $(addsuffix /$1,$(CUDA_INCLUDE) $(CUDA_SYSTEM)))
CUDA_LACKS := $(if $(NVCC),$(if $(call has_header,nccl.h),,nccl/include/nccl.h) \
              $(if $(call has_header,cublasLt.h),,cu13/include/cublasLt.h))
CUDA_PYPI  := $(if $(strip $(CUDA_LACKS)),$(patsubst %/include/,%,$(dir $(wildcard $(foreach folder,$(shell \
              python3 -c 'import nvidia; print(*nvidia.__path__)' 2>/dev/null),$(addprefix $(folder)/,$(CUDA_LACKS)))))))
CUDA_FLAGS := $(addprefix -isystem ,$(CUDA_INCLUDE) $(CUDA_PYPI:=/include))
CUDA_LIBS  := -L$(dir $(NVCC))../lib $(foreach lib,$(CUDA_PYPI:=/lib),-L$(lib) -Xlinker -rpath=$(lib)) $(strip \
              )$(if $(filter %/cu13,$(CUDA_PYPI)),$(addprefix -Xlinker -l:lib,cublas.so.13 cublasLt.so.13),$(strip \
              )-lcublas -lcublasLt) $(strip \
              )$(if $(filter %/nccl,$(CUDA_PYPI)),-Xlinker -l:libnccl.so.2,-lnccl)
# Ampere, Hopper, Blackwell. A kernel that spills registers is an error, because it would be slow.
# 90a: compute capability 9.0 with its own instructions (wgmma), which no newer GPU has.
CUDA_ARCHES := 80 90a 100
# PTX, from which the driver compiles for GPUs that are newer than all of these.
CUDA_NEWER := -gencode arch=compute_100,code=compute_100
NVCC_FLAGS := -std=c++17 -O3 $(foreach a,$(CUDA_ARCHES),-gencode arch=compute_$a$(comma)code=sm_$a) $(CUDA_NEWER) \
              -I. $(addprefix -isystem ,$(CUDA_PYPI:=/include)) \
              -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden -Xptxas -warn-spills -Werror all-warnings

## cuda          build lib/libtp-cuda.so for GPUs with nvcc (docs/GPU.md); compare what its kernels take of a GPU with
##               limits, and the fake CUDA device's declarations with NVIDIA's (cuda-library: build it, and compare nothing)
cuda: cuda-library
	@$(PYTHON) -B tests/check/kernel_resources.py $(BUILD)/cuda
	$(Q)for double in api api_memory api_stream cublas cublaslt graph nccl nccl_comm; do \
	  g++ -std=c++17 -Wall -Wextra -fsyntax-only -I. $(CUDA_FLAGS) tests/fakecuda/$$double.cc || exit 1; done

cuda-library:
	@[ -n "$(NVCC)" ] || { echo "cuda: nvcc is not installed, so the library cannot be built" >&2; exit 3; }
	@$(MAKE) $(BUILD)/cuda/libtp-cuda.so
	@mkdir -p $(LIB) && cp $(BUILD)/cuda/libtp-cuda.so $(LIB)/

$(BUILD)/cuda/libtp-cuda.so: $(call CUDA_FILES,$(BUILD)/cuda)
	@echo "  LINK  $@"
	$(Q)$(NVCC) -shared -cudart static -Xlinker --no-undefined $^ $(CUDA_LIBS) -o $@

# When the flags change, the kernels are compiled again.
$(BUILD)/cuda/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(NVCC_FLAGS) -Xptxas -v' | cmp -s - $@ || echo '$(NVCC_FLAGS) -Xptxas -v' > $@

$(BUILD)/cuda/%.o: %.cu $(BUILD)/cuda/.flags
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	@rm -rf $(@:.o=.keep) && mkdir $(@:.o=.keep)
	$(Q)$(NVCC) $(NVCC_FLAGS) -Xptxas -v -keep -keep-dir $(@:.o=.keep) -MD -MP -MF $(@:.o=.d) -c $< -o $@ \
	  >$(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas); exit 1; }
	@find $(@:.o=.keep) -type f ! -name '*.ptx' -delete

$(BUILD)/cuda/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	@echo "  CC    $< (libtp-cuda)"
	$(call compile,$(CC) $(ALL_CFLAGS) $(CUDA_FLAGS) -fPIC -fvisibility=hidden -MMD -MP)

# The fake CUDA device (tests/fakecuda/README.md). Its files hooks.cc and undefined.cc take the place of
# the sanitizers' libraries: UBSan's for all that is compiled here, ThreadSanitizer's for kernels. -O0: an
# optimizer takes structs apart, and then nobody sees that their copy was misaligned. Neither CC nor SANITIZE
# changes these objects, so that all builds share them.
FAKE       := build/fakecuda
FAKE_UB    := bool,bounds,builtin,enum,float-cast-overflow,integer-divide-by-zero,nonnull-attribute,return,$(strip \
              )returns-nonnull-attribute,shift,signed-integer-overflow,unreachable,vla-bound
FAKE_FLAGS := -O2 -g -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unused-const-variable \
              -fsanitize=$(FAKE_UB) -fno-sanitize-recover=$(FAKE_UB) -Itests/fakecuda/include -I.
FAKE_WATCH := -O0 -fsanitize=thread,alignment,null -mllvm -tsan-instrument-read-before-write=1
FAKE_CC    := $(patsubst %.cc,$(FAKE)/%.o,$(wildcard tests/fakecuda/*.cc))
FAKE_LINK  := clang++ -fPIC -Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset,-z,defs
FAKE_LIBS  := -ldl -lpthread -lm
FAKE_BIN   := $(BUILD)/tests/libtp-cuda.so $(BUILD)/tests/fakecuda_planted \
              $(addprefix $(BUILD)/tests/fakecuda_planted_,graphs grouped memory products ranks tiles traffic warpgroups)

$(BUILD)/tests/libtp-cuda.so: $(call CUDA_FILES,$(FAKE)) $(FAKE_CC)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(FAKE_LINK) -shared $^ $(FAKE_LIBS) -o $@

$(BUILD)/tests/fakecuda_%: $(FAKE)/tests/fakecuda/%.o $(FAKE_CC)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(FAKE_LINK) $^ $(FAKE_LIBS) -o $@

$(FAKE)/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FAKE_FLAGS) $(FAKE_WATCH)' | cmp -s - $@ || echo '$(FAKE_FLAGS) $(FAKE_WATCH)' > $@

$(FAKE)/%.o: %.cc $(FAKE)/.flags
	@mkdir -p $(@D)
	@echo "  FAKE  $<"
	$(call compile,clang++ -std=c++17 $(FAKE_FLAGS) -MMD -MP)

$(FAKE)/%.o: %.cu $(FAKE)/.flags
	@mkdir -p $(@D)
	@echo "  FAKE  $<"
	$(call compile,clang++ -x c++ -std=c++17 $(FAKE_FLAGS) $(FAKE_WATCH) -Wno-unused-function -MMD -MP)

$(FAKE)/%.o: %.c $(FAKE)/.flags
	@mkdir -p $(@D)
	@echo "  FAKE  $<"
	$(call compile,clang -std=c11 -D_GNU_SOURCE -DTP_VERSION='"$(VERSION)"' $(FAKE_FLAGS) -MMD -MP)

# What nvcc makes of the kernels, on the fake device: the PTX of `make cuda`, translated to C++, in the place of the kernels
# that clang compiles from the sources (tests/fakecuda/ptx/translate.py). The tests of the kernels run once for each architecture.
ARCHES    := $(CUDA_ARCHES)
# A call that is the last of a kernel must return to it: reports and barriers need its place.
PTX_FLAGS := -O1 -gline-tables-only -fPIC -fvisibility=hidden -ffp-contract=off -fno-optimize-sibling-calls $(strip \
             )-Wall -Wextra -Wno-unused-label -Wno-unused-variable -Wno-unused-function -Itests/fakecuda/include -I.
PTX_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/kernels_cuda*.c))

## ptx           run the tests of kernels on the fake CUDA device with what nvcc makes of the kernels: their PTX, translated
##               to C++ (ARCHES="80 90a 100"; exit 3: there is no nvcc)
ptx:
	@[ -n "$(NVCC)" ] || { echo "ptx: nvcc is not installed, so there is no PTX to run" >&2; exit 3; }
	@$(MAKE) $(ARCHES:%=$(FAKE)/sm_%/libtp-cuda.so) $(PTX_TESTS)
	@TP_BUILD=$(BUILD) $(PYTHON) -B tests/fakecuda/ptx/run.py $(ARCHES:%=$(FAKE)/sm_%) -- $(PTX_TESTS)

$(FAKE)/.ptx-flags: FORCE
	@mkdir -p $(@D)
	@echo '$(PTX_FLAGS)' | cmp -s - $@ || echo '$(PTX_FLAGS)' > $@

define PTX_RULES
$(FAKE)/sm_$1/%.ptx: $(BUILD)/cuda/%.o
	@mkdir -p $$(@D) && cp $(BUILD)/cuda/$$*.keep/$$(*F).compute_$1.ptx $$@

$(FAKE)/sm_$1/%.cc: $(FAKE)/sm_$1/%.ptx tests/fakecuda/ptx/translate.py
	@$$(PYTHON) -B tests/fakecuda/ptx/translate.py $$< $$@

$(FAKE)/sm_$1/%.o: $(FAKE)/sm_$1/%.cc $(FAKE)/.ptx-flags
	@echo "  FAKE  $$<"
	$$(call compile,clang++ -std=c++17 $$(PTX_FLAGS) -MMD -MP)

$(FAKE)/sm_$1/libtp-cuda.so: $$(call CUDA_FILES,$(FAKE)) $$(FAKE_CC) $$(CUDA_CU:%=$(FAKE)/sm_$1/%.o)
	@echo "  LINK  $$@"
	$$(Q)$$(FAKE_LINK) -shared $$^ $$(FAKE_LIBS) -o $$@
endef
$(foreach arch,$(ARCHES),$(eval $(call PTX_RULES,$(arch))))

## gpu-check     everything that only a GPU can show, in at most ten minutes: build/gpu-check/report.txt and report.json
##               (exit 3: this machine has no GPU)
GPU_TESTS := $(addprefix $(BUILD)/tests/,kernels_cuda device_cuda_graph) \
             $(addprefix $(BUILD)/tests/kernels_cuda_,products experts head_norm loss optimizer shapes)
GPU_PROGRAMS := $(addprefix $(BIN)/,tp-train tp-reshard tp-ckpt)
gpu-check:
	@[ -n "$(NVCC)" ] || { echo "gpu-check: nvcc is not installed, so nothing was checked." >&2; exit 3; }
	@$(MAKE) -k $(GPU_PROGRAMS) || echo "gpu-check: a program was not built; the report says which" >&2
	@$(MAKE) cuda-library
	@$(MAKE) -k $(BUILD)/gpu_check $(BUILD)/libkernel_times.so $(GPU_TESTS) || echo "gpu-check: a test was not built; the report says which" >&2
	@TP_CUDA_LIBRARY=$(abspath $(LIB))/libtp-cuda.so $(PYTHON) -B tests/gpu/gpu_check.py --build $(BUILD) --bin $(BIN)

## gpu-check-bundle  build/gpu-check.tar.gz: the programs of gpu-check with the libraries that they need, for a machine that
##               has a GPU and no compiler (docs/GPU.md)
gpu-check-bundle:
	@[ -n "$(NVCC)" ] || { echo "gpu-check-bundle: nvcc is not installed, so nothing was built." >&2; exit 3; }
	@$(MAKE) cuda-library # apart, because it builds objects of gpu_check in a make of its own
	@$(MAKE) $(GPU_PROGRAMS) $(BUILD)/gpu_check $(GPU_TESTS)
	@$(MAKE) $(BUILD)/libkernel_times.so || echo "gpu-check-bundle: without CUPTI there will be no times of kernels" >&2
	@$(PYTHON) -B tests/gpu/bundle.py --build $(BUILD) --bin $(BIN) --libtp-cuda.so $(LIB)/libtp-cuda.so -o build/gpu-check.tar.gz

$(BUILD)/gpu_check: tests/gpu/gpu_check.cu $(call CUDA_FILES,$(BUILD)/cuda) \
  $$(filter-out $(BUILD)/tests/gpu/% $(CUDA_C:%=$(BUILD)/%.o),$$(call objects,gpu_check))
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) $^ -Xcompiler -fopenmp -cudart static $(CUDA_LIBS) -o $@

# CUPTI is a part of CUDA's toolkit, in a folder of its own or beside the rest.
CUPTI := $(abspath $(dir $(NVCC))../extras/CUPTI)
$(BUILD)/libkernel_times.so: tests/gpu/kernel_times.cc
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) -std=c++17 -O2 -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -I$(CUPTI)/include -L$(CUPTI)/lib64 \
	  -Xlinker -rpath=$(CUPTI)/lib64 -shared $< -cudart none -lcupti -o $@

## demo          train at tp8, reshard to tp4, resume, export, in demo/; installs what is missing
demo:
	@tools/setup.sh build demo
	@$(MAKE) all
	@BIN=$(BIN) examples/demo.sh

# ---- tests ----------------------------------------------------------------------------------

## test          install what is missing, build, run the tests; T=pattern: those that match
test:
	@tools/setup.sh build test
	@targets=$$($(RUN_TESTS) --targets) && { [ -z "$$targets" ] || $(MAKE) $$targets; }
	@$(if $(SANITIZE),$(MAKE) SANITIZE= CC=gcc bin/tp-train lib/libtp-progress.so)
	@$(RUN_TESTS)

## test-long     also the tests that take longer: a bare Debian, long properties, every fault point
test-long:
	@tools/setup.sh build test long
	@targets=$$(LONG=1 $(RUN_TESTS) --targets) && { [ -z "$$targets" ] || $(MAKE) $$targets; }
	@LONG=1 $(RUN_TESTS)

## test-map      print which tests cover each module
test-map: build/uses.mk
	@$(PYTHON) -B tests/check/modules.py --map

## test-clients  compare with transformers and PyTorch (from PyPI, in .venv/)
test-clients:
	@tools/setup.sh build test clients
	@$(MAKE) all
	@BUILD=$(BUILD) BIN=$(BIN) tests/clients/run.sh

## test-packaging  test what `make install` installs: manual pages, completions, libraries
test-packaging:
	@tools/setup.sh build packaging
	@$(MAKE) all manuals
	@$(RUN_TESTS) --folder tests/packaging

RUN_TESTS = CC='$(CC)' BUILD=$(BUILD) BIN=$(BIN) PYTHON=$(PYTHON) JOBS=$(JOBS) \
            SANITIZE=$(SANITIZE) T='$(T)' $(PYTHON) -B tests/runner/run.py

TEST_BIN  := $(addprefix $(BUILD)/,$(call names_of,$(TESTS) $(VARIANTS)))
BENCH_BIN := $(addprefix $(BUILD)/,$(call names_of,$(BENCH)))
DESCRIBE_BIN := $(addprefix $(BUILD)/,$(call names_of,$(DESCRIBE)))
## tests         build the programs and all tests, and run nothing
tests: all $(TEST_BIN) $(SHIM) $(FAKE_BIN)
## unit          build the unit tests (one program for each file of tests/unit)
unit: $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/*.c))

$(TEST_BIN): $(BUILD)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) -lcriterion $(LIBS) -o $@

$(BENCH_BIN) $(DESCRIBE_BIN): $(BUILD)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) $(LIBS) -o $@

## fuzz          fuzz every parser of bytes from outside for FUZZ_SECONDS (3600) each; T=name: one of them
## fuzz-short    the same for a minute each
FUZZ_SECONDS ?= 3600
FUZZ_SAN := fuzzer-no-link,address,undefined
FUZZ_BIN := $(addprefix $(BUILD)/,$(call names_of,$(FUZZ)))
fuzz fuzz-short:
	@tools/setup.sh build lint
	@$(MAKE) CC=clang SANITIZE=$(FUZZ_SAN) fuzz-programs
	@$(PYTHON) -B tests/fuzz/run.py --programs build/san-$(subst $(comma),-,$(FUZZ_SAN))-clang/fuzz \
	  --seconds $(if $(filter fuzz,$@),$(FUZZ_SECONDS),60) --jobs $(JOBS) --only '$(T)'
fuzz-programs: $(FUZZ_BIN)
$(FUZZ_BIN): $(BUILD)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) -fsanitize=fuzzer $(LIBS) -o $@

# They are preloaded into the programs, so they are never built with a sanitizer.
$(BUILD)/tests/fault/shim.so $(BUILD)/tests/fault/record.so: tests/fault/preload.c tests/fault/preload.h
$(BUILD)/tests/fault/%.so: tests/fault/%.c | $(BUILD)/.tools
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -fPIC -shared $(filter %.c,$^) -o $@ -ldl -lpthread

## benches       build the benchmarks, and run nothing
benches: $(BENCH_BIN)

## bench         run the benchmarks; the last line names those that failed
bench: all tests benches
	@TP_BIN=$(abspath $(BIN)) TP_BUILD=$(abspath $(BUILD)) $(PYTHON) -B tests/bench/run.py $(BENCH_BIN) $(wildcard tests/bench/bench_*.py)

# ---- checks ---------------------------------------------------------------------------------

## lint          clang-format, clang-tidy, cppcheck, shellcheck, check-arm64, check-deps
lint: check-format check-tidy check-cpp check-shell check-arm64 check-deps

check-format:
	@clang-format --dry-run -Werror $(C_FILES)
	@echo "  ok    clang-format ($(words $(C_FILES)) files)"

# The analyzer follows paths through a function until it has seen this many states. Its own limit of 225000 takes several
# times as long (make lint TIDY_STATES=225000), but reached no other block of the code in a sample of 40 files.
TIDY_STATES := 30000
TIDY_LIMIT  := $(addprefix --extra-arg=,-Xclang -analyzer-config -Xclang max-nodes=$(TIDY_STATES))
check-tidy: $(LIB_SRC:%.c=$(BUILD)/tidy-$(TIDY_STATES)/%.ok) $(CLI_SRC:%.c=$(BUILD)/tidy-$(TIDY_STATES)/%.ok)
	@echo "  ok    clang-tidy ($(words $^) files)"
$(BUILD)/tidy-$(TIDY_STATES)/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@echo "  TIDY  $<"
	@clang-tidy --quiet --warnings-as-errors='*' $(TIDY_LIMIT) $< -- $(TP_CFLAGS) \
	  -isystem tests/fakecuda/include 2>$@.log || \
	  { cat $@.log; exit 1; }
	@touch $@

check-cpp:
	@cppcheck --quiet --std=c11 --language=c -j $(JOBS) -I. --error-exitcode=1 --inline-suppr \
	  --enable=warning,performance,portability --suppressions-list=tests/check/cppcheck.txt \
	  -DCPPCHECK --include=tests/check/cppcheck.h \
	  $(LIB_SRC) $(CLI_SRC)
	@echo "  ok    cppcheck"

check-shell:
	@shellcheck -x $(wildcard tools/*.sh examples/*.sh packaging/*.sh tests/*/*.sh) .ci/run
	@echo "  ok    shellcheck"

# clang compiles for arm64 on every machine. The C library's headers are Debian's for arm64. Other libraries' headers are
# those of this machine; they come last, so that nothing of its own C library is found. C++ is the fake CUDA device.
HERE         = $(shell uname -m)-linux-gnu
CXX_HEADERS := $(lastword $(wildcard /usr/include/c++/*))
ARM64_FLAGS  = --target=aarch64-linux-gnu -fsyntax-only -Werror -isystem /usr/aarch64-linux-gnu/include \
               -isystem tests/fakecuda/include $(subst -isystem,-idirafter,$(TP_CFLAGS)) -idirafter /usr/include/$(HERE)
# llmc_training.c is compiled with llm.c alone.
ARM64_C     := $(filter-out %/llmc_training.c,$(filter %.c,$(C_FILES)))
ARM64_CXX   := $(wildcard tests/fakecuda/*.cc)
## check-arm64   compile all C, tests too, for arm64, as far as that finds errors and warnings
check-arm64:
	@printf '%s\n' $(ARM64_C) | xargs -P $(JOBS) -n 16 clang $(ARM64_FLAGS)
	@printf '%s\n' $(ARM64_CXX) | xargs -P $(JOBS) -n 4 clang++ -nostdinc++ -isystem $(CXX_HEADERS) \
	  -isystem $(CXX_HEADERS:/usr/include/%=/usr/include/$(HERE)/%) $(filter-out -std=% %-prototypes,$(ARM64_FLAGS)) -std=c++17
	@echo "  ok    clang for arm64 ($(words $(ARM64_C) $(ARM64_CXX)) files)"

## check-deps    the rules of the tree: includes, calls, tags, READMEs, tests of every module, headers
check-deps: build/uses.mk | $(BUILD)/.tools
	@$(PYTHON) -B tests/check/includes.py
	@$(PYTHON) -B tests/check/calls.py
	@$(PYTHON) -B tests/check/tags.py
	@$(PYTHON) -B tests/check/readmes.py
	@$(PYTHON) -B tests/check/links.py
	@$(PYTHON) -B tests/check/modules.py
	@CC='$(CC)' $(PYTHON) -B tests/check/headers.py

## format        run clang-format on every C file
format:
	@clang-format -i $(C_FILES)

# ---- the rest -------------------------------------------------------------------------------

## setup         install the packages that building, testing and the demo need (apt-get)
setup:
	@tools/setup.sh build demo test && echo "setup: nothing is missing"

# Manual pages and completions, generated from the option tables.
SHARE := $(BUILD)/share
manuals: $(SHARE)/.made
$(SHARE)/.made: $(DESCRIBE_BIN) $(wildcard packaging/*.py packaging/man/*)
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is missing (Debian package python3); manual pages need it" >&2; exit 1; }
	@echo "  GEN   $(@D)"
	@rm -rf $(@D)
	$(Q)$(PYTHON) -B packaging/man.py $(BUILD)/describe $(@D)/man
	$(Q)$(PYTHON) -B packaging/completions.py $(BUILD)/describe $(@D)
	@touch $@

INSTALL = VERSION=$(VERSION) SONAME=$(SONAME) PYTHON=$(PYTHON) BIN=$(BIN) LIB=$(LIB) SHARE=$(SHARE) packaging/install.sh
# from the environment, because no shell then reads the characters of a path
install uninstall: export PREFIX := $(PREFIX)
install uninstall: export DESTDIR := $(DESTDIR)
## install       programs, manual pages, completions and libtp-progress, below PREFIX (/usr/local)
install: all manuals
	@$(INSTALL) install
## uninstall     remove exactly the files that install puts there
uninstall:
	@$(INSTALL) uninstall

## wheel         build the Python package tp_checkpoint (docs/PYTHON.md) into build/wheel/, without the network
wheel:
	@rm -rf build/wheel && mkdir -p build/wheel && cp -r python build/wheel/source
	@$(PYTHON) -m pip --disable-pip-version-check -q wheel --no-index --no-deps --no-build-isolation \
	  -w build/wheel build/wheel/source
	@rm -rf build/wheel/source && ls build/wheel/*.whl

## deb           build Debian packages into build/deb/ (packaging/README.md)
deb:
	@tools/setup.sh build packaging
	@VERSION=$(VERSION) packaging/deb.sh

## clean         remove everything that was built, and demo/
clean:
	rm -rf build bin lib demo

## help          print this list. Knobs: T= SANITIZE= CC= CFLAGS= WERROR=1 V=1 PREFIX= DESTDIR= JOBS=
help:
	@sed -n 's/^## \?/  /p' Makefile

.PHONY: all manuals deb wheel cuda cuda-library ptx gpu-check gpu-check-bundle demo test test-long fuzz fuzz-short fuzz-programs \
        test-map test-clients test-packaging tests unit benches bench lint check-format check-tidy check-cpp \
        check-shell check-arm64 check-deps format setup install uninstall clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
WARNED := $(if $(WERROR),$(shell find $(BUILD) $(FAKE) -name '*.o.warnings' 2>/dev/null))
ifneq ($(WARNED),)
$(shell rm -f $(WARNED) $(WARNED:.warnings=))
endif
-include $(patsubst %.o,%.d,$(shell find $(BUILD) $(FAKE) -name '*.o' 2>/dev/null))
