# tp: checkpoint resharding and training orchestration, in C. `make help` lists the targets.
.DEFAULT_GOAL := all
VERSION  := 0.1.0
PREFIX   ?= /usr/local
CC       ?= gcc
CFLAGS   ?= -O3 -g
NVCC     ?= $(shell command -v nvcc 2>/dev/null)
# `make SANITIZE=address,undefined` builds beside the plain build
SANITIZE ?=
BUILD    := build/$(if $(SANITIZE),san-$(subst $(comma),-,$(SANITIZE)),plain)
BIN      := $(if $(SANITIZE),$(BUILD)/bin,bin)
comma    := ,

FOLDERS  := core layout kernels comm ckpt reshard trainer
PROGRAMS := $(patsubst cli/tp_%.c,tp-%,$(wildcard cli/tp_*.c))
PACKAGES := jansson hdf5-serial libcrypto libisal ompi-c

PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES) 2>/dev/null)
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
SAN_FLAGS  := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer -DTP_SANITIZE)
WARNINGS   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef
ALL_CFLAGS := -std=c11 -D_GNU_SOURCE -DTP_VERSION='"$(VERSION)"' -I. $(WARNINGS) $(CFLAGS) -fopenmp \
              -isystem /usr/include/hdf5/serial $(subst -I,-isystem ,$(PKG_CFLAGS)) $(SAN_FLAGS)
# what the vector loops need (kernels/vec.h says why); results stay those of IEEE arithmetic
KERNEL_FLAGS := -fno-math-errno -fno-trapping-math -ffp-contract=fast
LIBS       := $(PKG_LIBS) -ldnnl -lm -lpthread

LIB_SRC  := $(foreach d,$(FOLDERS),$(wildcard $(d)/*.c))
CLI_SRC  := $(filter-out cli/tp_%,$(wildcard cli/*.c))
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
UNIT_SRC := $(wildcard tests/unit/*.c)
UNIT     := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)

## all: build the programs into bin/
all: $(PROGRAMS:%=$(BIN)/%)

$(BUILD)/libtp.a: $(LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/kernels/%.o: ALL_CFLAGS += $(KERNEL_FLAGS)
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(ALL_CFLAGS) -MMD -MP -c $< -o $@

$(BIN)/tp-%: $(BUILD)/cli/tp_%.o $(CLI_OBJ) $(BUILD)/libtp.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(ALL_CFLAGS) $^ $(LDFLAGS) $(LIBS) -o $@

## unit: build the unit tests (one program a file of tests/unit)
unit: $(UNIT)
$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(CLI_OBJ) $(BUILD)/libtp.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(ALL_CFLAGS) $^ $(LDFLAGS) -lcriterion $(LIBS) -o $@

## help: this list
help:
	@sed -n 's/^## //p' Makefile

## clean: remove what was built
clean:
	rm -rf build bin

.PHONY: all unit help clean
.SECONDARY:
-include $(shell find build -name '*.d' 2>/dev/null)
