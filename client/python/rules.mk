# The Python package commd. Its wheel holds a libcommclient of its own, with protobuf-c linked statically.
PYTHON_LIBRARY := $(BUILD)/python/$(CLIENT_SONAME)
$(PYTHON_LIBRARY): $(CLIENT_OBJECTS) $(PROTO_OBJECTS) client/lib/libcommclient.map
	$(Q)mkdir -p $(@D) && echo "  LINK    $@" && $(CC) -shared $(LDFLAGS_SHARED) $(LTO_LDFLAGS_$(VARIANT)) $(no_undefined_$(VARIANT)) -Wl,-soname,$(CLIENT_SONAME) \
	    -Wl,--version-script=client/lib/libcommclient.map -Wl,--exclude-libs,ALL -o $@.part $(filter %.o,$^) -l:libprotobuf-c.a && \
	    $(HOST:%=%-)strip -g -o $@ $@.part && rm -f $@.part
wheel-library: $(PYTHON_LIBRARY)
wheel: $(PYTHON_LIBRARY) ## build the wheel of the Python package, with the library in it, in $(BUILD)/python
	$(Q)rm -f $(BUILD)/python/*.whl && python3 -B client/python/build_wheel.py --library $< --version $(VERSION) --out $(BUILD)/python

# A system's package of the Python package has no library in it: it finds the system's.
pythondir ?= $(PREFIX)/lib/python3/dist-packages
install-python:
	umask 022 && python3 -B client/python/build_wheel.py --unpacked --version $(VERSION) --out $(DESTDIR)$(pythondir)
.PHONY: wheel wheel-library install-python
