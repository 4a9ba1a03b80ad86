# The CUDA kernels become one image for several GPUs. It is stored in libcommd.a as data, so the same commd
# runs with and without a GPU. CUDA=auto builds it if a toolkit is found. CUDA=no never builds it; the image
# is empty then. CUDA=yes requires a toolkit.
#
# There is one source file, so each architecture's compiler reads shared code once. The architectures are
# compiled in parallel.
KERNEL_GPUS ?= 80 90 100
# The driver of a later GPU compiles this. ptxas makes the code of later GPUs from it, too: the sources know no
# difference between them, and PTX takes the compiler almost twice as long as code takes ptxas.
KERNEL_PTX ?= 90
# It only runs the preprocessor.
CUDA_HOST_COMPILER ?= $(CXX)
# All variants have the same kernels, so they share them, unless BUILD gives the place of all outputs.
KERNELS_BUILD ?= $(if $(filter file,$(origin BUILD)),build/kernels,$(BUILD)/kernels)
export KERNELS_BUILD

ifneq ($(builds),)
ifneq ($(CUDA),no)
ifneq ($(shell command -v $(CUDA_HOST_COMPILER)),)
NVCC ?= $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
endif
ifneq ($(NVCC),)
CUDA_BIN := $(patsubst %/,%,$(dir $(shell readlink -f $(NVCC))))
CUDA_INCLUDE := $(firstword $(wildcard $(CUDA_BIN)/../include $(CUDA_BIN)/../targets/*/include))
# An older toolkit knows fewer GPUs.
kernel_known := $(shell $(NVCC) --list-gpu-code)
kernel_gpus := $(foreach gpu,$(KERNEL_GPUS),$(if $(filter sm_$(gpu),$(kernel_known)),$(gpu)))
endif
ifeq ($(CUDA)$(kernel_gpus),yes)
$(error CUDA=yes needs a CUDA toolkit that knows one of the GPUs $(KERNEL_GPUS), and the C++ compiler $(CUDA_HOST_COMPILER) for it. \
    $(if $(NVCC),$(NVCC) does not,nvcc is neither on the PATH nor in /usr/local/cuda/bin: set CUDA_HOME to where it is), or use CUDA=no)
endif
endif
endif

KERNEL_SOURCES := $(wildcard kernels/*.cu kernels/*.cuh kernels/*.h) proto/types.h
# No contraction into fused multiply-add and no flushed denormals, so that the bits equal those of the host's
# reductions. Without contraction, the PTX names the rounding of every operation, so no driver can fuse them
# later.
NVCC_FLAGS := -std=c++17 -I. -fmad=false -ftz=false -prec-div=true

ifneq ($(kernel_gpus),)
KERNEL_FLAGS_STAMP := $(KERNELS_BUILD)/flags
kernel_flags_now = $(NVCC) $(NVCC_FLAGS) $(CUDA_HOST_COMPILER) $(kernel_gpus) $(KERNEL_PTX)
$(shell mkdir -p $(KERNELS_BUILD))
$(call write_stamp,$(KERNEL_FLAGS_STAMP),$(kernel_flags_now))
$(KERNEL_FLAGS_STAMP): ; @mkdir -p $(@D) && touch $@

# Written under a temporary name first, because builds of several variants may share the folder at the same
# time.
$(KERNELS_BUILD)/%.ptx: $(KERNEL_SOURCES) $(KERNEL_FLAGS_STAMP)
	$(Q)mkdir -p $(@D) && echo "  NVCC    kernels/kernels.cu ($*)" && \
	    $(NVCC) -ccbin $(CUDA_HOST_COMPILER) -allow-unsupported-compiler $(NVCC_FLAGS) -arch=compute_$* --ptx -o $@.$$$$ kernels/kernels.cu && mv $@.$$$$ $@
ptx_of = $(KERNELS_BUILD)/$(shell [ $1 -gt $(KERNEL_PTX) ] && echo $(KERNEL_PTX) || echo $1).ptx
define cubin_of
$(KERNELS_BUILD)/$1.cubin: $(call ptx_of,$1)
endef
$(foreach gpu,$(kernel_gpus),$(eval $(call cubin_of,$(gpu))))
$(KERNELS_BUILD)/%.cubin:
	$(Q)echo "  PTXAS   $@" && $(CUDA_BIN)/ptxas -arch=sm_$* --fmad false -o $@.$$$$ $< && mv $@.$$$$ $@
.PRECIOUS: $(KERNELS_BUILD)/%.ptx

kernel_image_parts := $(foreach gpu,$(kernel_gpus),--image3=kind=elf,sm=$(gpu),file=$(KERNELS_BUILD)/$(gpu).cubin) \
    --image3=kind=ptx,sm=$(KERNEL_PTX),file=$(KERNELS_BUILD)/$(KERNEL_PTX).ptx
$(KERNELS_BUILD)/image.fatbin: $(kernel_gpus:%=$(KERNELS_BUILD)/%.cubin) $(KERNELS_BUILD)/$(KERNEL_PTX).ptx
	$(Q)echo "  FATBIN  $@" && $(CUDA_BIN)/fatbinary --create=$@.$$$$ -64 --compress-mode=size $(kernel_image_parts) && mv $@.$$$$ $@

$(BUILD)/kernels/image.o: $(KERNELS_BUILD)/image.fatbin
KERNELS_CPPFLAGS := -DKERNELS_IMAGE_FILE='"$(KERNELS_BUILD)/image.fatbin"'
endif

IMAGE_STAMP := $(BUILD)/kernels/image.flags
ifneq ($(builds),)
$(shell mkdir -p $(BUILD)/kernels)
$(call write_stamp,$(IMAGE_STAMP),$(KERNELS_CPPFLAGS))
endif
$(IMAGE_STAMP): ; @mkdir -p $(@D) && touch $@
$(BUILD)/kernels/image.o: kernels/image.S $(FLAGS_STAMP) $(IMAGE_STAMP)
	$(Q)mkdir -p $(@D) && echo "  AS      $<" && $(CC) $(KERNELS_CPPFLAGS) -c -o $@ $<
