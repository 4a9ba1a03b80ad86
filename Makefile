# commd: one make process; each folder adds its rules.mk. `make help` lists the targets.

VERSION := 0.1.0
VARIANT ?= release
BUILD ?= build/$(VARIANT)
CUDA ?= no
CC ?= cc
# make's own default for CC is "cc" already; the sanitizers and lint use clang where it is there.

PREFIX ?= /usr/local
DESTDIR ?=
bindir ?= $(PREFIX)/bin
sbindir ?= $(PREFIX)/sbin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
mandir ?= $(PREFIX)/share/man
docdir ?= $(PREFIX)/share/doc/commd
sysconfdir ?= /etc
unitdir ?= $(PREFIX)/lib/systemd/system
sysusersdir ?= $(PREFIX)/lib/sysusers.d
tmpfilesdir ?= $(PREFIX)/lib/tmpfiles.d

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

ifeq ($(filter release asan tsan,$(VARIANT)),)
$(error VARIANT=$(VARIANT): expected release, asan or tsan)
endif
ifeq ($(filter auto yes no,$(CUDA)),)
$(error CUDA=$(CUDA): expected auto, yes or no)
endif

# Everything that compiles needs the packages: they are installed, and the private libraries found, before the build is read.
goals := $(or $(MAKECMDGOALS),all)
goals_without_build := help deps clean distclean check-layers format
ifneq ($(filter-out $(goals_without_build),$(goals)),)
DEPS_PREFIX := $(shell CC="$(CC)" tests/lib/install-deps.sh || echo failed)
ifeq ($(DEPS_PREFIX),failed)
$(error make deps failed: see above)
endif
endif

ifneq ($(DEPS_PREFIX),)
PKG_CONFIG := PKG_CONFIG_PATH=$(DEPS_PREFIX)/lib/pkgconfig pkg-config --static
QUIC_CFLAGS = -I$(DEPS_PREFIX)/include
QUIC_LIBS = -L$(DEPS_PREFIX)/lib -lngtcp2_crypto_ossl -lngtcp2 -l:libssl.a -l:libcrypto.a -ldl -pthread
CRYPTO_LIBS = -l:libcrypto.a -ldl -pthread
else
PKG_CONFIG := pkg-config
QUIC_LIBS = -lngtcp2_crypto_ossl -lngtcp2 -lssl -lcrypto
CRYPTO_LIBS = -lcrypto
endif
CRYPTO_LIBS := $(if $(DEPS_PREFIX),-L$(DEPS_PREFIX)/lib) $(CRYPTO_LIBS)

WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wswitch-enum -Wformat=2
ifneq ($(CI)$(WERROR),)
WARNINGS += -Werror
endif

CPPFLAGS_ALL = -D_GNU_SOURCE -I. -I$(BUILD)/gen $(QUIC_CFLAGS) -DCOMMD_SYSCONFDIR='"$(sysconfdir)"' $(CPPFLAGS)
CFLAGS_ALL = -std=gnu17 -g -fno-omit-frame-pointer -fPIC -fvisibility=hidden -fstack-protector-strong -pthread $(VARIANT_CFLAGS) $(CFLAGS)
LDFLAGS_ALL = -pie -Wl,-z,relro,-z,now -pthread $(VARIANT_LDFLAGS) $(LDFLAGS)

ifeq ($(VARIANT),release)
VARIANT_CFLAGS := -O2 -D_FORTIFY_SOURCE=2
else ifeq ($(VARIANT),asan)
VARIANT_CFLAGS := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
VARIANT_LDFLAGS := -fsanitize=address,undefined
else
VARIANT_CFLAGS := -O1 -fsanitize=thread
VARIANT_LDFLAGS := -fsanitize=thread
endif

# Changed flags rebuild: every object depends on a stamp that holds them.
FLAGS_STAMP := $(BUILD)/flags
flags_now := $(CC) $(WARNINGS) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(CUDA)
ifneq ($(filter-out $(goals_without_build),$(goals)),)
$(shell mkdir -p $(BUILD); printf '%s\n' '$(subst ','\'',$(flags_now))' | cmp -s - $(FLAGS_STAMP) || \
    printf '%s\n' '$(subst ','\'',$(flags_now))' > $(FLAGS_STAMP))
endif

compile = @mkdir -p $(@D) && echo "  CC      $<" && $(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARNINGS) $(EXTRA_CFLAGS) -MMD -MP -c -o $@ $<
link = @mkdir -p $(@D) && echo "  LINK    $@" && $(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o %.a,$^) $(EXTRA_LIBS)

$(BUILD)/%.o: %.c $(FLAGS_STAMP)
	$(compile)

all: ## build the daemon, the library, commctl, the examples and the manual pages

include proto/rules.mk
include daemon/rules.mk
include client/rules.mk
include kernels/rules.mk
include config/rules.mk
include systemd/rules.mk
include tests/rules.mk

deps: ## install what the system lacks and build the private libraries (called by the others when needed)
	@CC="$(CC)" tests/lib/install-deps.sh >/dev/null

demo: all ## two nodes, four processes, a training run: in under a minute
	@COMMD_BUILD=$(BUILD) client/examples/demo.sh

format: ## format all C sources
	@git ls-files '*.c' '*.h' | xargs clang-format -i

install: install-daemon install-client install-config install-systemd ## install below DESTDIR and PREFIX; an installed configuration is kept
uninstall: ## remove what install put there, the configuration excepted
	rm -f $(DESTDIR)$(sbindir)/commd $(DESTDIR)$(bindir)/commctl $(DESTDIR)$(includedir)/commclient.h
	rm -f $(DESTDIR)$(libdir)/libcommclient.* $(DESTDIR)$(libdir)/pkgconfig/commclient.pc
	rm -f $(DESTDIR)$(unitdir)/commd.service $(DESTDIR)$(unitdir)/commd.socket
	rm -f $(DESTDIR)$(sysusersdir)/commd.conf $(DESTDIR)$(tmpfilesdir)/commd.conf
	rm -f $(addprefix $(DESTDIR)$(mandir)/,$(INSTALLED_MAN_PAGES))

clean: ## remove what was built (the private libraries' cache stays)
	rm -rf build

help: ## this list
	@echo "commd $(VERSION): make [VARIANT=release|asan|tsan] [CC=gcc|clang] [CUDA=auto|yes|no] [PREFIX=...] [DESTDIR=...] TARGET"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile */rules.mk | sort | expand -t 20

.PHONY: all deps demo format install uninstall clean help

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
