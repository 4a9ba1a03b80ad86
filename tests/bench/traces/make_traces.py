#!/usr/bin/env python3
"""Writes the traces beside this file: what one training step of known models communicates. tests/bench/README.md has the sources of the sizes.

A line is one call of trace.h. Sizes follow from the models' shapes. The computing between them is a round number for one GPU. It is divided among the
operations by the parameters that they belong to.
"""
import pathlib

MIB = 1 << 20
FOLDER = pathlib.Path(__file__).resolve().parent


def resnet50():
    """Returns the sizes of ResNet-50's parameters in elements, in the order of the model: 25,557,032 in all."""
    sizes = [64 * 3 * 49, 64, 64]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [width * channels, width, width, width * width * 9, width, width, 4 * width * width, 4 * width, 4 * width]
            if block == 0:
                sizes += [4 * width * channels, 4 * width, 4 * width]
            channels = 4 * width
    return sizes + [1000 * channels, 1000]


def gpt2_layer(width):
    return [width, width, 3 * width * width, 3 * width, width * width, width, width, width, 4 * width * width, 4 * width, 4 * width * width, width]


def gpt2(width=768, layers=12):
    """Returns the sizes of GPT-2's parameters in elements: 124,439,808 in all. The embedding is also the last layer."""
    return [50257 * width, 1024 * width, *(layers * gpt2_layer(width)), width, width]


def ddp_buckets(sizes, first_bytes=MIB, bytes_each=25 * MIB, element_bytes=4):
    """Groups gradients as PyTorch's DDP does: from the last layer on, a bucket is full when it reaches its limit."""
    buckets, filled = [], 0
    for size in reversed(sizes):
        filled += size * element_bytes
        if filled >= (bytes_each if buckets else first_bytes):
            buckets.append(filled)
            filled = 0
    return buckets + ([filled] if filled else [])


def ddp(sizes, forward_us, backward_us):
    """Gradients are all-reduced while the rest of the backward pass runs."""
    buckets = ddp_buckets(sizes)
    lines = [f"compute {forward_us}"]
    for size in buckets:
        lines += [f"compute {round(backward_us * size / sum(buckets))}", f"start all_reduce {size}"]
    return lines + ["wait"]


def fsdp(layer_bytes, layers, layer_us):
    """Each layer's parameters are gathered while the layer before it computes. The backward pass gathers them again, and scatters the gradients
    of the layer before."""
    forward = [f"start all_gather {layer_bytes}", f"compute {layer_us}", "wait"]
    backward = [f"start reduce_scatter {layer_bytes}", f"start all_gather {layer_bytes}", f"compute {2 * layer_us}", "wait"]
    return [f"repeat {layers}", *forward, "end", f"repeat {layers}", *backward, "end"]


def tensor_parallel(activation_bytes, layers, part_us):
    """Two all-reduces of the activations for each layer and pass. The next part of the layer needs each of them."""
    return [f"repeat {2 * layers}", f"compute {part_us}", f"all_reduce {activation_bytes}", "end",
            f"repeat {2 * layers}", f"compute {2 * part_us}", f"all_reduce {activation_bytes}", "end"]


def mixture(token_bytes, layers, expert_us, shared_bytes, weights):
    """Tokens go to their experts and come back, in both passes. Some experts are asked for more often than others."""
    weights = " ".join(map(str, weights))
    layer = ["all_reduce 256", f"all_to_all_v {token_bytes} {weights}", f"compute {expert_us}", f"all_to_all_v {token_bytes} back {weights}"]
    return [f"repeat {layers}", *layer, "end", f"repeat {layers}", *layer[1:], "end", f"all_reduce {shared_bytes}"]


TRACES = {
    "ddp-resnet50": ("ResNet-50, data-parallel: f32 gradients in buckets of 25 MiB", ddp(resnet50(), 20000, 40000)),
    "ddp-gpt2": ("GPT-2 (124 million parameters), data-parallel: f32 gradients in buckets of 25 MiB", ddp(gpt2(), 30000, 60000)),
    "fsdp-gpt2": ("GPT-2's 12 layers, fully sharded: 16-bit parameters and gradients of one layer", fsdp(2 * sum(gpt2_layer(768)), 12, 2500)),
    "tensor-gpt2": ("12 layers of width 1024, tensor-parallel: 16-bit activations of 1,024 tokens", tensor_parallel(2 * 1024 * 1024, 12, 400)),
    "moe-skew": ("8 layers of experts, width 1024: 1,024 tokens to 2 experts each, 16 bits, one rank's experts asked for 4 times as often",
                 mixture(2 * 1024 * 1024 * 2, 8, 1000, 25 * MIB, (4, 1, 2, 1))),
}


def main():
    for name, (title, lines) in TRACES.items():
        (FOLDER / f"{name}.trace").write_text(f"# {title}. Written by make_traces.py.\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
