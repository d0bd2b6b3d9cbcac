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
CFLAGS  ?= -O3 -g
NVCC    ?= $(shell command -v nvcc 2>/dev/null)

# Knobs: SANITIZE=address,undefined and CC=clang build beside the plain build, in folders of their
# own; WERROR=1 makes warnings errors; V=1 shows the commands.
SANITIZE ?=
FLAVOUR  := $(if $(SANITIZE),san-$(subst $(comma),-,$(SANITIZE)),plain)$(if \
              $(filter-out gcc,$(CC)),-$(notdir $(firstword $(CC))))
BUILD    := build/$(FLAVOUR)
BIN      := $(if $(filter plain,$(FLAVOUR)),bin,$(BUILD)/bin)
PROGRESS := $(patsubst %bin,%lib,$(BIN))/libtp-progress.so
Q        := $(if $(V),,@)

# Every processor, unless -j says otherwise; but several goals (make clean all) go one by one.
ifeq ($(MAKELEVEL)$(word 2,$(MAKECMDGOALS)),0)
MAKEFLAGS += -j$(JOBS)
endif
MAKEFLAGS += --no-print-directory

# ---- what is compiled, and how --------------------------------------------------------------

FOLDERS  := core layout device kernels comm ckpt reshard trainer progress orchestrator
PACKAGES := jansson hdf5-serial libcrypto libisal ompi-c yaml-0.1 libmicrohttpd libcurl

PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
SAN_FLAGS  := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
                -fno-omit-frame-pointer -DTP_SANITIZE)
WARNINGS   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 \
              -Wundef $(if $(WERROR),-Werror)
TP_CFLAGS  := -std=c11 -D_GNU_SOURCE -DTP_VERSION='"$(VERSION)"' -I. $(WARNINGS) -fopenmp \
              -isystem /usr/include/hdf5/serial $(subst -I,-isystem ,$(PKG_CFLAGS)) $(SAN_FLAGS)
ALL_CFLAGS := $(TP_CFLAGS) $(CFLAGS)
# what the vector loops need (kernels/cpu/vec.h says why); results stay those of IEEE arithmetic
KERNEL_FLAGS := -fno-math-errno -fno-trapping-math -ffp-contract=fast
LIBS       := $(PKG_LIBS) -ldnnl -lm -lpthread -ldl

LIB_SRC  := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c $(d)/*/*.c $(d)/*/*/*.c))
CLI_SRC  := $(wildcard cli/*.c cli/*/*.c)
C_FILES  := $(foreach d,$(FOLDERS) cli tests,$(foreach e,c h cu cuh, \
              $(wildcard $(d)/*.$(e) $(d)/*/*.$(e) $(d)/*/*/*.$(e))))

# Every program as NAME=MAIN: its name in the build folder and the file of its main().
# NAME=MAIN,FOLDER is a variant for tests: functions of FOLDER replace the product's.
programs_of = $(foreach f,$(wildcard $2),$1$(notdir $(basename $f))=$f)
names_of    = $(foreach p,$1,$(firstword $(subst =, ,$p)))
PRODUCT  := $(patsubst tp_%,tp-%,$(call programs_of,,cli/*/tp_*.c))
TESTS    := $(call programs_of,tests/,tests/unit/*.c) $(call programs_of,tests/mpi/,tests/mpi/*.c) \
            $(call programs_of,tests/,tests/fixture/*.c)
BENCH    := $(call programs_of,bench/,tests/bench/*.c)
VARIANTS :=
LINKED   := $(PRODUCT) $(TESTS) $(BENCH) $(VARIANTS) gpu_check=tests/gpu/gpu_check.cu
PROGRAMS := $(call names_of,$(PRODUCT))
# Preloaded into programs by tests of faults.
SHIM     := $(patsubst tests/fault/%.c,$(BUILD)/tests/fault/%.so,$(wildcard tests/fault/*.c))

## all           build the programs into bin/ (plain `make` does this; it never installs anything)
all: $(PROGRAMS:%=$(BIN)/%) $(PROGRESS)

# Which source files each program is linked from, found in the sources: uses_NAME := layout/box ...
include build/uses.mk
build/uses.mk: tools/link.awk build/sources $(C_FILES)
	@awk -f tools/link.awk $(LINKED) -- $(filter-out tests/%.c %.cu,$(C_FILES)) \
	  $(wildcard $(foreach v,$(VARIANTS),$(lastword $(subst $(comma), ,$(v)))/*.c)) >$@
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
$(BUILD)/%.o: %.c $(BUILD)/.flags | $(BUILD)/.tools
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

# libtp-progress: the five calls with which any trainer reports its progress to tp-run. It needs
# libc alone.
PROGRESS_SRC := progress/tp_progress.c $(addprefix core/,clock.c err.c heartbeat.c process_stat.c)
$(PROGRESS): $(PROGRESS_SRC) $(PROGRESS_SRC:.c=.h)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) $(TP_CFLAGS) -O2 -g -fvisibility=hidden -fPIC -shared $(filter %.c,$^) -o $@

$(BUILD)/orchestrator/web/status_page.o: orchestrator/web/status_page.html

# Prints once per build folder which compiler, header or library is missing, and its package.
$(BUILD)/.tools:
	@CC='$(CC)' tools/setup.sh --check build
	@mkdir -p $(@D) && touch $@

# When the flags change, everything is compiled again.
$(BUILD)/.flags: FORCE | $(BUILD)/.tools
	@echo '$(CC) $(subst ','\'',$(ALL_CFLAGS))' | cmp -s - $@ || \
	  echo '$(CC) $(subst ','\'',$(ALL_CFLAGS))' > $@

## cuda          the CUDA kernels' objects, where nvcc is found (part of all; no program links them yet)
CUDA_OBJ   := $(if $(NVCC),$(patsubst kernels/cuda/%.cu,$(BUILD)/cuda/%.o,$(wildcard kernels/cuda/*.cu)))
# sm_90: Hopper. A kernel that spills registers is an error: it would be slow without a word.
NVCC_FLAGS := -std=c++17 -O3 -arch=sm_90 -I. -Xcompiler -Wall,-Wextra -Xptxas -warn-spills \
              -Werror all-warnings
cuda: $(CUDA_OBJ)
all: $(if $(filter plain,$(FLAVOUR)),cuda)

$(BUILD)/cuda/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -MD -MP -MF $(@:.o=.d) -c $< -o $@

## gpu-check     compare the CUDA kernels with those in C on this machine's GPU; exit 3: none here
gpu-check: $(BUILD)/gpu_check
	$(BUILD)/gpu_check
	@if command -v compute-sanitizer >/dev/null; then \
	    compute-sanitizer --error-exitcode 1 $(BUILD)/gpu_check --quick; \
	else echo "compute-sanitizer is not installed: memory of the GPU was not checked"; fi

$(BUILD)/gpu_check: tests/gpu/gpu_check.cu $(CUDA_OBJ) \
  $$(filter-out $(BUILD)/tests/gpu/%,$$(call objects,gpu_check))
	@[ -n "$(NVCC)" ] || { echo "gpu-check: nvcc is not installed; nothing was checked." >&2; exit 3; }
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) $^ -Xcompiler -fopenmp -o $@

## demo          train at tp8, reshard to tp4, go on, export; installs what is missing; into demo/
demo:
	@tools/setup.sh build demo
	@$(MAKE) all
	@BIN=$(BIN) examples/demo.sh

# ---- tests ----------------------------------------------------------------------------------

## test          install what is missing, build, run the tests; T=pattern: those that match
test:
	@tools/setup.sh build test
	@targets=$$($(RUN_TESTS) --targets) && $(MAKE) $$targets
	@$(RUN_TESTS)

## test-long     also the tests that take longer: a bare Debian, long properties, every fault point
test-long:
	@tools/setup.sh build test chroot
	@LONG=1 $(RUN_TESTS) --targets >/dev/null && $(MAKE) tests
	@LONG=1 $(RUN_TESTS)

## test-clients  ask transformers and PyTorch (from PyPI, into .venv/) whether they agree
test-clients:
	@tools/setup.sh build test clients
	@$(MAKE) all
	@BIN=$(BIN) tests/clients/run.sh

RUN_TESTS = CC='$(CC)' BUILD=$(BUILD) BIN=$(BIN) PYTHON=$(PYTHON) JOBS=$(JOBS) \
            SANITIZE=$(SANITIZE) T='$(T)' $(PYTHON) -B tests/runner/run.py

TEST_BIN  := $(addprefix $(BUILD)/,$(call names_of,$(TESTS) $(VARIANTS)))
BENCH_BIN := $(addprefix $(BUILD)/,$(call names_of,$(BENCH)))
## tests         build the programs and all tests, run nothing
tests: all $(TEST_BIN) $(SHIM)
## unit          build the unit tests (one program for each file of tests/unit)
unit: $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/*.c))

$(TEST_BIN): $(BUILD)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) -lcriterion $(LIBS) -o $@

$(BENCH_BIN): $(BUILD)/%: $$(call objects,$$*)
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(LINK) $(LIBS) -o $@

# Preloaded into the programs, so never built with a sanitizer.
$(BUILD)/tests/fault/%.so: tests/fault/%.c | $(BUILD)/.tools
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -fPIC -shared $< -o $@ -ldl -lpthread

## bench         build the benchmarks and print their figures
bench: all tests $(BENCH_BIN)
	@for b in $(BENCH_BIN) $(wildcard tests/bench/*.sh tests/bench/*.py); do \
	  echo "== $$b"; TP_BIN=$(CURDIR)/$(BIN) TP_BUILD=$(CURDIR)/$(BUILD) $$b || exit 1; done

# ---- checks ---------------------------------------------------------------------------------

## lint          clang-format, clang-tidy, cppcheck, shellcheck, and make check-deps
lint: check-format check-tidy check-cpp check-shell check-deps

check-format:
	@clang-format --dry-run -Werror $(C_FILES)
	@echo "  ok    clang-format ($(words $(C_FILES)) files)"

check-tidy: $(LIB_SRC:%.c=$(BUILD)/tidy/%.ok) $(CLI_SRC:%.c=$(BUILD)/tidy/%.ok)
	@echo "  ok    clang-tidy ($(words $^) files)"
$(BUILD)/tidy/%.ok: %.c .clang-tidy
	@mkdir -p $(@D)
	@echo "  TIDY  $<"
	@clang-tidy --quiet --warnings-as-errors='*' $< -- $(TP_CFLAGS) 2>$@.log || \
	  { cat $@.log; exit 1; }
	@touch $@

check-cpp:
	@cppcheck --quiet --std=c11 --language=c -j $(JOBS) -I. --error-exitcode=1 --inline-suppr \
	  --enable=warning,performance,portability --suppressions-list=tests/check/cppcheck.txt \
	  '-Djson_array_foreach(a,i,v)=for(;;)' '-Djson_object_foreach(o,k,v)=for(;;)' \
	  $(LIB_SRC) $(CLI_SRC)
	@echo "  ok    cppcheck"

check-shell:
	@shellcheck -x $(wildcard tools/*.sh examples/*.sh tests/*.sh tests/*/*.sh) .ci/run
	@echo "  ok    shellcheck"

## check-deps    the rules of the tree: includes, calls, tags, READMEs, headers that stand alone
check-deps: | $(BUILD)/.tools
	@$(PYTHON) -B tests/check/includes.py
	@$(PYTHON) -B tests/check/calls.py
	@$(PYTHON) -B tests/check/tags.py
	@$(PYTHON) -B tests/check/readmes.py
	@CC='$(CC)' $(PYTHON) -B tests/check/headers.py

## format        rewrite every C file as clang-format wants it
format:
	@clang-format -i $(C_FILES)

# ---- the rest -------------------------------------------------------------------------------

## setup         install what building, testing and the demo need (apt-get, as root or with sudo)
setup:
	@tools/setup.sh build demo test && echo "setup: all is there"

## install       copy the programs to PREFIX/bin (default /usr/local; DESTDIR is honoured)
install: all
	@mkdir -p '$(DESTDIR)$(PREFIX)/bin'
	@for p in $(PROGRAMS); do \
	  echo "  INSTALL $(DESTDIR)$(PREFIX)/bin/$$p"; \
	  install -m 755 $(BIN)/$$p '$(DESTDIR)$(PREFIX)/bin/' || exit 1; done
	@install -D -m 755 $(PROGRESS) '$(DESTDIR)$(PREFIX)/lib/libtp-progress.so'
	@install -D -m 644 progress/tp_progress.h '$(DESTDIR)$(PREFIX)/include/tp_progress.h'

## uninstall     remove them again
uninstall:
	@for p in $(PROGRAMS); do rm -f '$(DESTDIR)$(PREFIX)/bin/'$$p; done
	@rm -f '$(DESTDIR)$(PREFIX)/lib/libtp-progress.so' '$(DESTDIR)$(PREFIX)/include/tp_progress.h'

## clean         remove what was built (and the demo's folder)
clean:
	rm -rf build bin lib demo

## help          this list; knobs: T= SANITIZE= CC= CFLAGS= WERROR=1 V=1 PREFIX= DESTDIR= JOBS=
help:
	@sed -n 's/^## /  /p' Makefile

.PHONY: all cuda gpu-check demo test test-long test-clients tests unit bench lint check-format \
        check-tidy check-cpp check-shell check-deps format setup install uninstall clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(patsubst %.o,%.d,$(shell find $(BUILD) -name '*.o' 2>/dev/null))
