# The torch backend with Debian's torch, in root file systems of its own: see tests/torch/check_torch.py.
TORCH_RELEASES ?= trixie sid
check-torch: all wheel ## run the tests of the torch backend, and torch's own, with Debian's torch 2.6 and the newest (350 MB each, once)
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/torch/check_torch.py $(TORCH_RELEASES)
demo-torch: all ## train a transformer on two nodes, by DDP and FSDP2, beside Gloo
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/torch/demo_torch.py
bench-torch: all ## measure the torch backend beside Gloo
	@COMMD_BUILD=$(abspath $(BUILD)) python3 -B tests/torch/run_bench.py
.PHONY: check-torch demo-torch bench-torch
