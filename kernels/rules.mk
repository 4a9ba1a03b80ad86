# CUDA kernels behind a plain C header of launchers. CUDA=no builds none, and the daemon runs its host backend.
ifeq ($(CUDA),yes)
$(error CUDA=yes: this version has no CUDA backend yet; use CUDA=no)
endif
