CLIENT_SONAME := libcommclient.so.0
CLIENT_HEADERS := $(sort $(wildcard client/include/commclient/*.h))
# The library reduces small operations itself, by the daemon's code: so all results have the same bits.
CLIENT_REDUCE_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard daemon/host/reduce*.c) daemon/host/copy.c daemon/base/error.c)
CLIENT_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/lib/*.c client/lib/gpu/*.c)) $(CLIENT_REDUCE_OBJECTS)
COMMCTL_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/commctl/*.c))
EXAMPLE_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/examples/*.c))
EXAMPLES := $(patsubst $(BUILD)/client/examples/%.o,$(BUILD)/examples/%,$(EXAMPLE_OBJECTS))

$(CLIENT_OBJECTS) $(COMMCTL_OBJECTS): | $(PROTO_HEADERS)
$(filter-out $(CLIENT_REDUCE_OBJECTS),$(CLIENT_OBJECTS)) $(PROTO_OBJECTS): EXTRA_CFLAGS += $(LTO_CFLAGS_$(VARIANT))
$(BUILD)/client/%.o: CPPFLAGS_ALL += -Iclient/include

# For the project's own programs and tests, which may look inside.
$(BUILD)/client/internal.a: $(CLIENT_OBJECTS)
	$(archive)
$(BUILD)/client/commctl.a: $(filter-out %/main.o,$(COMMCTL_OBJECTS))
	$(archive)

# The static library holds one object whose only global symbols are the API's, like the shared one by its version script.
$(BUILD)/libcommclient.o: $(CLIENT_OBJECTS) $(PROTO_OBJECTS)
	$(Q)echo "  LD      $@" && $(CC) $(LTO_LDFLAGS_$(VARIANT)) $(LTO_CFLAGS_$(VARIANT):%=-flinker-output=nolto-rel) -r -nostdlib -o $@.all $^ && $(HOST:%=%-)objcopy --wildcard --keep-global-symbol='comm_*' $@.all $@ && rm -f $@.all
$(BUILD)/libcommclient.a: $(BUILD)/libcommclient.o
	$(archive)

# The sanitizers' symbols come with the program.
no_undefined_release := -Wl,-z,defs
link_library = $(Q)echo "  LINK    $@" && $(CC) -shared $(LDFLAGS_SHARED) $(no_undefined_$(VARIANT)) -Wl,-soname,$(CLIENT_SONAME) \
    -Wl,--version-script=client/lib/libcommclient.map $(LTO_LDFLAGS_$(VARIANT)) -o $@ $(filter %.o,$^) -lprotobuf-c
$(BUILD)/$(CLIENT_SONAME): $(CLIENT_OBJECTS) $(PROTO_OBJECTS) client/lib/libcommclient.map
	$(link_library)
$(BUILD)/libcommclient.so: $(BUILD)/$(CLIENT_SONAME)
	$(Q)ln -sf $(CLIENT_SONAME) $@

# NCCL's interface on top of the library, for programs that were written for NCCL. It stands off the linker's path.
NCCL_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/nccl/*.c))
NCCL_LIBRARY := $(BUILD)/nccl/libnccl.so.2
$(NCCL_OBJECTS): | $(PROTO_HEADERS)
$(NCCL_LIBRARY): $(NCCL_OBJECTS) $(BUILD)/proto/cuda_driver.o $(BUILD)/libcommclient.a client/nccl/libnccl.map
	$(Q)mkdir -p $(@D) && echo "  LINK    $@" && $(CC) -shared $(NO_LTO_$(VARIANT)) $(LDFLAGS_SHARED) $(no_undefined_$(VARIANT)) -Wl,-soname,libnccl.so.2 \
	    -Wl,--version-script=client/nccl/libnccl.map -o $@ $(filter %.o %.a,$^) -lprotobuf-c -lm

# What tells other builds where the library is says it relative to itself, so the folder may be moved as a whole.
prefix_from = $(shell realpath -m --relative-to=$(libdir)/$1 $(PREFIX))
in_prefix_libdir = $(patsubst $(PREFIX)/%,$${prefix}/%,$(libdir))
in_prefix_includedir = $(patsubst $(PREFIX)/%,$${prefix}/%,$(includedir))
CMAKE_FILES := $(patsubst client/lib/%.in,$(BUILD)/cmake/%,$(wildcard client/lib/*.cmake.in))
$(BUILD)/commclient.pc: client/lib/commclient.pc.in $(FOLDERS_STAMP)
	$(Q)sed -e 's|@PREFIX@|$(call prefix_from,pkgconfig)|; s|@LIBDIR@|$(in_prefix_libdir)|; s|@INCLUDEDIR@|$(in_prefix_includedir)|; s|@VERSION@|$(VERSION)|' $< > $@
$(BUILD)/cmake/%.cmake: client/lib/%.cmake.in $(FOLDERS_STAMP)
	$(Q)mkdir -p $(@D) && sed -e 's|@PREFIX@|$(call prefix_from,cmake/commclient)|; s|@LIBDIR@|$(in_prefix_libdir)|; s|@INCLUDEDIR@|$(in_prefix_includedir)|; s|@VERSION@|$(VERSION)|; s|$${prefix}|$${_commclient_prefix}|' $< > $@

COMMCTL_LIBS = -lprotobuf-c -ljansson -lconfig -lncurses -ltinfo $(CRYPTO_LIBS) -lm
$(BUILD)/commctl: EXTRA_LIBS = $(COMMCTL_LIBS)
$(BUILD)/commctl: $(BUILD)/client/commctl/main.o $(BUILD)/client/commctl.a $(BUILD)/client/internal.a $(PROTO_OBJECTS)
	$(link)

# It is a program that uses CUDA besides; this table does for it what its toolkit's library would.
$(BUILD)/examples/overlap: $(BUILD)/proto/cuda_driver.o
$(EXAMPLES): EXTRA_LIBS = -lprotobuf-c -lm
$(EXAMPLES): $(BUILD)/examples/%: $(BUILD)/client/examples/%.o $(BUILD)/libcommclient.a
	$(link)

MAN_SOURCES += $(wildcard client/*/*.scd)
all: $(NCCL_LIBRARY) $(BUILD)/libcommclient.a $(BUILD)/libcommclient.so $(BUILD)/commclient.pc $(CMAKE_FILES) $(BUILD)/commctl $(EXAMPLES)

install-client: all
	install -D -m 755 $(BUILD)/commctl $(DESTDIR)$(bindir)/commctl
	install -D -m 644 client/include/commclient.h $(DESTDIR)$(includedir)/commclient.h
	install -D -m 644 -t $(DESTDIR)$(includedir)/commclient $(CLIENT_HEADERS)
	install -D -m 755 $(BUILD)/$(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so.$(VERSION)
	ln -sf libcommclient.so.$(VERSION) $(DESTDIR)$(libdir)/$(CLIENT_SONAME)
	ln -sf $(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so
	install -D -m 755 $(NCCL_LIBRARY) $(DESTDIR)$(libdir)/commd/nccl/libnccl.so.2
	install -D -m 644 $(BUILD)/libcommclient.a $(DESTDIR)$(libdir)/libcommclient.a
	install -D -m 644 $(BUILD)/commclient.pc $(DESTDIR)$(libdir)/pkgconfig/commclient.pc
	install -D -m 644 -t $(DESTDIR)$(libdir)/cmake/commclient $(CMAKE_FILES)
INSTALLED += $(bindir)/commctl $(includedir)/commclient.h $(addprefix $(includedir)/commclient/,$(notdir $(CLIENT_HEADERS))) $(libdir)/pkgconfig/commclient.pc \
    $(addprefix $(libdir)/,libcommclient.a libcommclient.so $(CLIENT_SONAME) libcommclient.so.$(VERSION)) \
    $(addprefix $(libdir)/cmake/commclient/,$(notdir $(CMAKE_FILES)))
INSTALLED += $(libdir)/commd/nccl/libnccl.so.2
INSTALLED_FOLDERS += $(libdir)/commd/nccl $(libdir)/commd $(libdir)/cmake/commclient $(includedir)/commclient

install-completions:
	install -D -m 644 client/commctl/completion/commctl.bash $(DESTDIR)$(bashcompletiondir)/commctl
	install -D -m 644 client/commctl/completion/commctl.zsh $(DESTDIR)$(zshcompletiondir)/_commctl
	install -D -m 644 client/commctl/completion/commctl.fish $(DESTDIR)$(fishcompletiondir)/commctl.fish
INSTALLED += $(bashcompletiondir)/commctl $(zshcompletiondir)/_commctl $(fishcompletiondir)/commctl.fish
.PHONY: install-client install-completions
