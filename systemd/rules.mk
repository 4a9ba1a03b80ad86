sharedir ?= $(PREFIX)/share/commd

$(BUILD)/systemd/commd.service: systemd/commd.service.in $(FOLDERS_STAMP)
	$(Q)mkdir -p $(@D) && sed -e 's|@BINDIR@|$(bindir)|g; s|@SBINDIR@|$(sbindir)|g; s|@SYSCONFDIR@|$(sysconfdir)|g' $< > $@
all: $(BUILD)/systemd/commd.service

install-systemd: $(BUILD)/systemd/commd.service
	install -D -m 644 $(BUILD)/systemd/commd.service $(DESTDIR)$(unitdir)/commd.service
	install -D -m 644 systemd/commd.socket $(DESTDIR)$(unitdir)/commd.socket
	install -D -m 644 systemd/commd.sysusers $(DESTDIR)$(sysusersdir)/commd.conf
	install -D -m 644 systemd/commd.tmpfiles $(DESTDIR)$(tmpfilesdir)/commd.conf
	install -D -m 644 systemd/commd-alerts.yml $(DESTDIR)$(sharedir)/commd-alerts.yml
	install -D -m 644 systemd/commd-dashboard.json $(DESTDIR)$(sharedir)/commd-dashboard.json
INSTALLED += $(addprefix $(sharedir)/,commd-alerts.yml commd-dashboard.json)
INSTALLED += $(unitdir)/commd.service $(unitdir)/commd.socket $(sysusersdir)/commd.conf $(tmpfilesdir)/commd.conf
.PHONY: install-systemd

# Builds in a copy of the sources. Objects and GPU kernels stay for the next build.
deb-deps:
	@tests/lib/install-deps.sh $(if $(filter check,$(DEPS)),--check) --packages $(DEPS_FILE)
deb: deb-deps ## build the Debian packages into build/deb, for the release of Debian that this is
	@KERNELS_BUILD=$(abspath $(KERNELS_BUILD)) CUDA=$(CUDA) systemd/build-packages.sh build/deb $(VERSION)
.PHONY: deb deb-deps
