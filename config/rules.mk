MAN_SOURCES += $(wildcard config/*.scd)

vpath %.scd daemon client/lib client/nccl client/commctl client/examples config
$(BUILD)/man/%: %.scd config/man.awk
	$(Q)mkdir -p $(@D) && echo "  SCDOC   $<" && scdoc < $< > $@.scdoc && awk -f config/man.awk $@.scdoc > $@ && rm $@.scdoc

# After the folders that add to MAN_SOURCES.
MAN_PAGES := $(patsubst %.scd,$(BUILD)/man/%,$(notdir $(MAN_SOURCES)))
man_page_path = $(mandir)/man$(patsubst .%,%,$(suffix $1))/$(notdir $1)
man: $(MAN_PAGES)
all: man

install-config: man
	test -e $(DESTDIR)$(sysconfdir)/commd/commd.conf || \
	    install -D -m 644 config/commd.conf $(DESTDIR)$(sysconfdir)/commd/commd.conf
	$(foreach page,$(MAN_PAGES),install -D -m 644 $(page) $(DESTDIR)$(call man_page_path,$(page)) &&) :
INSTALLED += $(foreach page,$(MAN_PAGES),$(call man_page_path,$(page)))
.PHONY: man install-config
