/* What ep_conv and ep_pointwise have in common: all output channels of one pixel, or of two. */
#ifndef EDGEPIPE_BLOCK_H
#define EDGEPIPE_BLOCK_H

#include "kernels.h"

/* A pixel's input lies in `runs` runs of contiguous bytes, `run_stride` apart; in the filters they are contiguous. */
struct ep_block {
    const int8_t *filter;
    int32_t runs, run_length, run_stride;
    int32_t channels;
    struct ep_requantization output;
    const struct ep_residual *residual;
    const int8_t *added;
    int8_t *target;
};

/* Output pixels `pixel` and `pixel + 1`, whose inputs begin at `input0` and `input1`. */
void ep_two_pixels(const struct ep_block *block, const int8_t *input0, const int8_t *input1, int32_t pixel);

/* Output pixel `pixel`, whose input begins at `input`. */
void ep_one_pixel(const struct ep_block *block, const int8_t *input, int32_t pixel);

/* Codes of `count` channels from `channel` on of output pixel `pixel`, from their sums. */
void ep_finish(const struct ep_block *block, int32_t pixel, int32_t channel, int32_t count, const uint32_t *sums);

#endif
