/*
 * kernels_image and kernels_image_bytes of kernels.h: the file that was built, or 0 bytes. In the latter case
 * a terminated text follows, in case a driver reads it: drivers take anything that is not a binary for PTX.
 */
    .section .rodata
    .balign 64
    .global kernels_image
    .hidden kernels_image
    .type kernels_image, %object
kernels_image:
#if defined(KERNELS_IMAGE_FILE)
    .incbin KERNELS_IMAGE_FILE
.Lend:
#else
.Lend:
    .asciz "// built without kernels\n"
#endif
    .size kernels_image, . - kernels_image
    .balign 8
    .global kernels_image_bytes
    .hidden kernels_image_bytes
    .type kernels_image_bytes, %object
kernels_image_bytes:
    .quad .Lend - kernels_image
    .size kernels_image_bytes, 8
    .section .note.GNU-stack, "", %progbits
