MAN_SOURCES += $(wildcard config/*.scd)

# Recursive (=) on purpose: the pages are known once every rules.mk was read.
MAN_PAGES = $(foreach source,$(MAN_SOURCES),$(BUILD)/man/$(notdir $(source:.scd=)))
INSTALLED_MAN_PAGES = $(foreach page,$(notdir $(MAN_SOURCES:.scd=)),man$(patsubst .%,%,$(suffix $(page)))/$(page))

vpath %.scd daemon client/lib client/commctl config
$(BUILD)/man/%: %.scd
	@mkdir -p $(@D) && echo "  SCDOC   $<" && scdoc < $< > $@
all: man
man: ; @:
.PHONY: man
.SECONDEXPANSION:
man: $$(MAN_PAGES)

install-config:
	test -e $(DESTDIR)$(sysconfdir)/commd/commd.conf || \
	    install -D -m 644 config/commd.conf $(DESTDIR)$(sysconfdir)/commd/commd.conf
.PHONY: install-config
