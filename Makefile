# The build of commd. One make process builds everything; each folder adds its rules.mk. `make help` lists the targets.

VERSION := $(shell sed -n 's/^.define COMMD_VERSION_TEXT "\(.*\)"/\1/p' proto/version.h)
VARIANT ?= release
# The machine that it is built for, if that is another: HOST=aarch64-linux-gnu. Its -dev packages and compiler must be there.
HOST ?=
BUILD ?= build/$(VARIANT)$(HOST:%=-%)
CUDA ?= auto
DEPS ?= install
CC ?= cc
AR ?= ar
ifneq ($(HOST),)
CC := $(HOST)-gcc
AR := $(HOST)-ar
endif
export HOST

PREFIX ?= /usr/local
DESTDIR ?=
bindir ?= $(PREFIX)/bin
sbindir ?= $(PREFIX)/sbin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
mandir ?= $(PREFIX)/share/man
sysconfdir ?= /etc
unitdir ?= $(PREFIX)/lib/systemd/system
sysusersdir ?= $(PREFIX)/lib/sysusers.d
tmpfilesdir ?= $(PREFIX)/lib/tmpfiles.d
bashcompletiondir ?= $(PREFIX)/share/bash-completion/completions
zshcompletiondir ?= $(PREFIX)/share/zsh/site-functions
fishcompletiondir ?= $(PREFIX)/share/fish/vendor_completions.d

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

one_of = $(if $(filter $2,$($1)),,$(error $1=$($1): expected one of: $2))
$(call one_of,VARIANT,release debug asan tsan hops)
$(call one_of,CUDA,auto yes no)
$(call one_of,DEPS,install check)

goals := $(or $(MAKECMDGOALS),all)
goals_without_build := help deps clean check-layers check-sizes check-format check-service check-arm64 format uninstall
builds := $(filter-out $(goals_without_build),$(goals))

# make uses all processors, unless -j says otherwise. It runs the goals in order if `clean` is one of them.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif
ifneq ($(filter clean,$(goals)),)
.NOTPARALLEL:
endif
MAKEFLAGS += -r --no-print-directory
Q := $(if $(V),,@)

# Everything that compiles needs the packages. make installs them before it reads the rules. DEPS=check installs
# nothing; it names all that is missing.
DEPS_FILE := $(BUILD)/deps.mk
ifneq ($(builds),)
ifneq ($(shell HOST=$(HOST) tests/lib/install-deps.sh $(if $(filter check,$(DEPS)),--check) $(DEPS_FILE) && echo ready),ready)
$(error what the build needs is not there: see above)
endif
include $(DEPS_FILE)
endif

WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wswitch-enum -Wformat=2
ifneq ($(CI)$(WERROR),)
WARNINGS += -Werror
endif

VARIANT_CFLAGS_release := -O2 -D_FORTIFY_SOURCE=2
VARIANT_LDFLAGS_release := -Wl,-z,relro,-z,now
# The client library is compiled as a whole: a small operation takes a fifth less time. Other programs link its files
# one by one, which is faster to build. Only gcc writes files for both.
ifeq ($(findstring clang,$(shell $(CC) --version 2>/dev/null)),)
LTO_CFLAGS_release := -flto -ffat-lto-objects
LTO_LDFLAGS_release := -flto=2 -O2
NO_LTO_release := -fno-lto
endif
VARIANT_CFLAGS_debug := -O0 -g3
VARIANT_CFLAGS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
VARIANT_LDFLAGS_asan := -fsanitize=address,undefined
VARIANT_CFLAGS_tsan := -O1 -fsanitize=thread
VARIANT_LDFLAGS_tsan := -fsanitize=thread
# Like release, but each function reports when a thread enters and leaves it (tests/hops). Functions in headers do not
# report: a header does not count as a file of its own.
VARIANT_CFLAGS_hops := -O2 -finstrument-functions -finstrument-functions-exclude-file-list=.h,gen/

CPPFLAGS_ALL = -D_GNU_SOURCE -I. -I$(BUILD)/gen $(DEPS_CPPFLAGS) -DCOMMD_SYSCONFDIR='"$(sysconfdir)"' $(CPPFLAGS)
CFLAGS_ALL = -std=gnu17 -g -fno-omit-frame-pointer -fPIC -fvisibility=hidden -fstack-protector-strong -pthread \
    $(VARIANT_CFLAGS_$(VARIANT)) $(CFLAGS)
LDFLAGS_SHARED = -pthread -Wl,--as-needed $(VARIANT_LDFLAGS_$(VARIANT)) $(DEPS_LDFLAGS) $(LDFLAGS)
LDFLAGS_ALL = -pie $(NO_LTO_$(VARIANT)) $(LDFLAGS_SHARED)

# If flags or folders change, make builds the affected files again. Those files depend on a stamp that holds the flags
# or folders.
FLAGS_STAMP := $(BUILD)/flags
flags_now = $(CC) $(WARNINGS) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(QUIC_LIBS)
FOLDERS_STAMP := $(BUILD)/folders
folders_now = $(VERSION) $(PREFIX) $(bindir) $(sbindir) $(libdir) $(includedir) $(sysconfdir)
ifneq ($(builds),)
write_stamp = $(if $(call differ,$(file <$1),$2),$(file >$1,$2))
differ = $(if $(subst x$1x,,x$2x)$(subst x$2x,,x$1x),yes)
$(call write_stamp,$(FLAGS_STAMP),$(flags_now))
$(call write_stamp,$(FOLDERS_STAMP),$(folders_now))
endif
$(FLAGS_STAMP): ; @mkdir -p $(@D) && touch $@
$(FOLDERS_STAMP): ; @mkdir -p $(@D) && touch $@

compile = $(Q)mkdir -p $(@D) && echo "  CC      $<" && \
    $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARNINGS) $(EXTRA_CFLAGS) -MMD -MP -c -o $@ $<
link = $(Q)mkdir -p $(@D) && echo "  LINK    $@" && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(EXTRA_LIBS)
# The old archive is removed first. Otherwise it would keep members that are no longer listed.
archive = $(Q)mkdir -p $(@D) && echo "  AR      $@" && rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: %.c $(FLAGS_STAMP)
	$(compile)

deps: ## install what the system lacks and build the private libraries (the others call it when needed)
	@tests/lib/install-deps.sh $(DEPS_FILE)

all: ## build commd, commctl, libcommclient, the examples and the manual pages

demo: all ## two nodes, four processes and a training run, in under a minute
	@COMMD_BUILD=$(abspath $(BUILD)) client/examples/demo.sh

include proto/rules.mk
include kernels/rules.mk
include daemon/rules.mk
include client/rules.mk
include client/python/rules.mk
include config/rules.mk
include systemd/rules.mk
include tests/rules.mk
include tests/torch/torch.mk

install: all install-daemon install-client install-completions install-config install-systemd ## install below PREFIX (and DESTDIR); configuration that is there is kept
	$(if $(DESTDIR),,systemd/activate.sh $(sysusersdir) $(tmpfilesdir))
uninstall: ## stop the service and remove what install put there, but the configuration and the user
	$(if $(DESTDIR),,systemd/activate.sh --stop)
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	rmdir --ignore-fail-on-non-empty $(wildcard $(addprefix $(DESTDIR),$(INSTALLED_FOLDERS))) || :
	$(if $(DESTDIR),,systemd/activate.sh --forget)

clean: ## remove what was built (the private libraries stay in their cache)
	rm -rf build $(if $(wildcard $(FLAGS_STAMP)),$(BUILD))

help: ## list the targets
	@echo "make [TARGET] [VARIANT=release|debug|asan|tsan] [CC=gcc|clang] [BUILD=folder] [HOST=aarch64-linux-gnu] [CUDA=auto|yes|no] [DEPS=install|check]"
	@echo "     [PREFIX=$(PREFIX)] [DESTDIR=] [WERROR=1] [V=1]"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile */rules.mk client/python/rules.mk tests/torch/torch.mk | expand -t 18

.PHONY: all deps demo install uninstall clean help

ifneq ($(builds),)
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
endif
