CLIENT_VERSION := 0.1.0
CLIENT_SONAME := libcommclient.so.0
CLIENT_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/lib/*.c))
COMMCTL_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(wildcard client/commctl/*.c))
EXAMPLES := $(patsubst client/examples/%.c,$(BUILD)/examples/%,$(wildcard client/examples/*.c))

$(CLIENT_OBJECTS) $(COMMCTL_OBJECTS): | $(PROTO_HEADERS)
$(BUILD)/client/%.o: CPPFLAGS_ALL += -Iclient/include

# The static library holds one object whose only global symbols are the API's, like the shared one's version script.
$(BUILD)/libcommclient.o: $(CLIENT_OBJECTS) $(PROTO_OBJECTS)
	@echo "  LD      $@" && ld -r -o $@.all $^ && objcopy --wildcard --keep-global-symbol='comm_*' $@.all $@ && rm -f $@.all
$(BUILD)/libcommclient.a: $(BUILD)/libcommclient.o
	@echo "  AR      $@" && rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/$(CLIENT_SONAME): $(CLIENT_OBJECTS) $(PROTO_OBJECTS) client/lib/libcommclient.map
	@echo "  LINK    $@" && $(CC) -shared $(filter-out -pie,$(LDFLAGS_ALL)) -Wl,-soname,$(CLIENT_SONAME) \
	    -Wl,--version-script=client/lib/libcommclient.map -o $@ $(filter %.o,$^) -lprotobuf-c
$(BUILD)/libcommclient.so: $(BUILD)/$(CLIENT_SONAME)
	@ln -sf $(CLIENT_SONAME) $@

$(BUILD)/commclient.pc: client/lib/commclient.pc.in Makefile $(FLAGS_STAMP)
	@sed -e 's|@PREFIX@|$(PREFIX)|g; s|@LIBDIR@|$(libdir)|g; s|@INCLUDEDIR@|$(includedir)|g; s|@VERSION@|$(CLIENT_VERSION)|g' $< > $@

$(BUILD)/commctl: EXTRA_LIBS = -lprotobuf-c -ljansson -lconfig $(CRYPTO_LIBS)
$(BUILD)/commctl: $(COMMCTL_OBJECTS) $(PROTO_OBJECTS)
	$(link)

$(BUILD)/examples/%: EXTRA_LIBS = -lprotobuf-c -lm
$(BUILD)/examples/%: $(BUILD)/client/examples/%.o $(BUILD)/libcommclient.a
	$(link)

MAN_SOURCES += $(wildcard client/*/*.scd)
all: $(BUILD)/libcommclient.a $(BUILD)/libcommclient.so $(BUILD)/commclient.pc $(BUILD)/commctl $(EXAMPLES)

install-client: all
	install -D -m 755 $(BUILD)/commctl $(DESTDIR)$(bindir)/commctl
	install -D -m 644 client/include/commclient.h $(DESTDIR)$(includedir)/commclient.h
	install -D -m 755 $(BUILD)/$(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so.$(CLIENT_VERSION)
	ln -sf libcommclient.so.$(CLIENT_VERSION) $(DESTDIR)$(libdir)/$(CLIENT_SONAME)
	ln -sf $(CLIENT_SONAME) $(DESTDIR)$(libdir)/libcommclient.so
	install -D -m 644 $(BUILD)/libcommclient.a $(DESTDIR)$(libdir)/libcommclient.a
	install -D -m 644 $(BUILD)/commclient.pc $(DESTDIR)$(libdir)/pkgconfig/commclient.pc
	for page in $(INSTALLED_MAN_PAGES); do install -D -m 644 $(BUILD)/man/$${page#*/} $(DESTDIR)$(mandir)/$$page || exit 1; done
.PHONY: install-client
