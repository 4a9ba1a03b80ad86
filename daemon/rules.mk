COMMD_SOURCES := $(filter-out daemon/commd.c,$(wildcard daemon/*.c daemon/*/*.c))
COMMD_OBJECTS := $(COMMD_SOURCES:%.c=$(BUILD)/%.o)
COMMD_LIBS = $(QUIC_LIBS) -levent_extra -levent_core -lprotobuf-c -lconfig -lhwloc -lsystemd -lresolv -lm

$(COMMD_OBJECTS) $(BUILD)/daemon/commd.o: | $(PROTO_HEADERS)

# Host reductions: every vector width gives the same bits, so no contraction into fused multiply-add.
$(BUILD)/daemon/host/%.o: EXTRA_CFLAGS += -O3 -ffp-contract=off -fno-trapping-math
ifneq ($(filter x86_64%,$(if $(builds),$(shell $(CC) -dumpmachine))),)
$(BUILD)/daemon/host/%_avx2.o: EXTRA_CFLAGS += -mavx2 -mfma -mf16c
$(BUILD)/daemon/host/%_avx512.o: EXTRA_CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
endif

# The daemon is a library and a short main, so that tests link all of it.
$(BUILD)/libcommd.a: $(COMMD_OBJECTS) $(PROTO_OBJECTS) $(BUILD)/kernels/image.o
	$(archive)

$(BUILD)/commd: EXTRA_LIBS = $(COMMD_LIBS)
$(BUILD)/commd: $(BUILD)/daemon/commd.o $(BUILD)/libcommd.a
	$(link)

MAN_SOURCES += $(wildcard daemon/*.scd)
all: $(BUILD)/commd

install-daemon: $(BUILD)/commd
	install -D -m 755 $(BUILD)/commd $(DESTDIR)$(sbindir)/commd
INSTALLED += $(sbindir)/commd
.PHONY: install-daemon
