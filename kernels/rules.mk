# CUDA kernels behind a plain C header of launchers, which daemon/dev/cuda* alone includes. They become a module of their
# own that commd loads where a driver is, so that the same commd runs with and without a GPU. CUDA=auto builds the module
# where a toolkit is found and there are sources for it; CUDA=no never.
KERNEL_SOURCES := $(wildcard kernels/*.cu)
ifeq ($(CUDA),yes)
ifeq ($(KERNEL_SOURCES),)
$(error CUDA=yes: this version has no CUDA backend; use CUDA=no)
endif
endif
