CLIENT_SONAME := libcommclient.so.0
CLIENT_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/lib/*.c client/lib/gpu/*.c))
COMMCTL_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/commctl/*.c))
EXAMPLE_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/examples/*.c))
EXAMPLES := $(patsubst $(BUILD)/client/examples/%.o,$(BUILD)/examples/%,$(EXAMPLE_OBJECTS))

$(CLIENT_OBJECTS) $(COMMCTL_OBJECTS): | $(PROTO_HEADERS)
$(BUILD)/client/%.o: CPPFLAGS_ALL += -Iclient/include

# For the project's own programs and tests, which may look inside.
$(BUILD)/client/internal.a: $(CLIENT_OBJECTS)
	$(archive)
$(BUILD)/client/commctl.a: $(filter-out %/main.o,$(COMMCTL_OBJECTS))
	$(archive)

# The static library holds one object whose only global symbols are the API's, like the shared one by its version script.
$(BUILD)/libcommclient.o: $(CLIENT_OBJECTS) $(PROTO_OBJECTS)
	$(Q)echo "  LD      $@" && ld -r -o $@.all $^ && objcopy --wildcard --keep-global-symbol='comm_*' $@.all $@ && rm -f $@.all
$(BUILD)/libcommclient.a: $(BUILD)/libcommclient.o
	$(archive)

# The sanitizers' symbols come with the program.
no_undefined_release := -Wl,-z,defs
link_library = $(Q)echo "  LINK    $@" && $(CC) -shared $(LDFLAGS_SHARED) $(no_undefined_$(VARIANT)) -Wl,-soname,$(CLIENT_SONAME) \
    -Wl,--version-script=client/lib/libcommclient.map -o $@ $(filter %.o,$^) -lprotobuf-c
$(BUILD)/$(CLIENT_SONAME): $(CLIENT_OBJECTS) $(PROTO_OBJECTS) client/lib/libcommclient.map
	$(link_library)
$(BUILD)/libcommclient.so: $(BUILD)/$(CLIENT_SONAME)
	$(Q)ln -sf $(CLIENT_SONAME) $@

$(BUILD)/commclient.pc: client/lib/commclient.pc.in $(FOLDERS_STAMP)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|g; s|@LIBDIR@|$(libdir)|g; s|@INCLUDEDIR@|$(includedir)|g; s|@VERSION@|$(VERSION)|g' $< > $@

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
all: $(BUILD)/libcommclient.a $(BUILD)/libcommclient.so $(BUILD)/commclient.pc $(BUILD)/commctl $(EXAMPLES)

install-client: all
	install -D -m 755 $(BUILD)/commctl $(DESTDIR)$(bindir)/commctl
	install -D -m 644 client/include/commclient.h $(DESTDIR)$(includedir)/commclient.h
	install -D -m 755 $(BUILD)/$(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so.$(VERSION)
	ln -sf libcommclient.so.$(VERSION) $(DESTDIR)$(libdir)/$(CLIENT_SONAME)
	ln -sf $(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so
	install -D -m 644 $(BUILD)/libcommclient.a $(DESTDIR)$(libdir)/libcommclient.a
	install -D -m 644 $(BUILD)/commclient.pc $(DESTDIR)$(libdir)/pkgconfig/commclient.pc
INSTALLED += $(bindir)/commctl $(includedir)/commclient.h $(libdir)/pkgconfig/commclient.pc \
    $(addprefix $(libdir)/,libcommclient.a libcommclient.so $(CLIENT_SONAME) libcommclient.so.$(VERSION))
.PHONY: install-client
