/* Int8 kernels for microcontrollers, bit for bit those of TFLite Micro's reference.
 *
 * Images are NHWC with one image a batch. Nothing allocates: a kernel reads its layer's constants from flash, its input
 * from the arena, and writes to the arena. Everything that can be known beforehand (multipliers, activation ranges,
 * the input's zero point times the sum of the weights) is computed at export: kernel_parameters.py.
 *
 * The inner loops come in C, with the DSP instructions of Cortex-M4 and M7, and with the vectors (MVE) of Cortex-M55,
 * by what the compiler is told of the processor; EDGEPIPE_PORTABLE asks for C.
 *
 * EP_COLUMN_LENGTH: the longest filter (rows * columns * channels) for which ep_conv gathers its input. Longer ones are
 * right, but slower at the image's border. ep_conv has twice as many bytes on the stack; with DSP instructions, ep_conv
 * and ep_pointwise have four times as many besides.
 */
#ifndef EDGEPIPE_KERNELS_H
#define EDGEPIPE_KERNELS_H

#include <stdint.h>

#ifndef EP_COLUMN_LENGTH
#define EP_COLUMN_LENGTH 256
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct ep_image {
    int32_t rows, columns, channels;
};

/* A window that slides over an image; outside are rows and columns of padding. */
struct ep_window {
    int32_t kernel_rows, kernel_columns;
    int32_t stride_rows, stride_columns;
    int32_t dilation_rows, dilation_columns;
    int32_t top, left, bottom, right;
};

/* From sums to codes; the pointers' arrays have an element for each channel. */
struct ep_requantization {
    int32_t zero_point, lowest, highest;
    const int32_t *bias;       /* with the share of the input's zero point */
    const int32_t *multiplier; /* Q31 */
    const int8_t *shift;       /* to the left if positive */
};

struct ep_conv {
    struct ep_image input;
    struct ep_window window;
    int32_t input_zero_point;
    int32_t output_channels;
    const int8_t *filter; /* [output channel][row][column][input channel] */
    struct ep_requantization output;
};

struct ep_pointwise {
    int32_t pixels, input_channels, output_channels;
    const int8_t *filter; /* [output channel][input channel] */
    struct ep_requantization output;
};

struct ep_depthwise {
    struct ep_image input;
    struct ep_window window;
    int32_t input_zero_point;
    int32_t depth_multiplier; /* output channels for each input channel */
    const int8_t *filter;     /* [output channel][row][column] */
    struct ep_requantization output;
};

struct ep_pool {
    struct ep_image input;
    struct ep_window window;
    int32_t lowest, highest;
};

struct ep_term {
    int32_t zero_point, multiplier, shift;
};

/* From two codes to that of their sum. */
struct ep_sum {
    struct ep_term first, second;
    int32_t multiplier, shift;
    int32_t zero_point, lowest, highest;
};

/* `first` and `second`: steps of the operands from element to element along each axis; 0 where one is repeated. */
struct ep_add {
    int32_t size[4], first[4], second[4];
    struct ep_sum sum;
};

struct ep_mul {
    int32_t size[4], first[4], second[4];
    int32_t first_zero_point, second_zero_point;
    int32_t multiplier, shift;
    int32_t zero_point, lowest, highest;
};

/* What is added to a convolution's output, the sum's first operand, as soon as a pixel of it is there. */
struct ep_residual {
    int32_t columns; /* of the output */
    int32_t row_stride, column_stride, channel_stride;
    struct ep_sum sum;
};

/* Two groups of axes are kept, two are averaged over; a group that is not there has size 1. */
struct ep_mean {
    int32_t kept_size[2], kept_stride[2];
    int32_t averaged_size[2], averaged_stride[2];
    int32_t offset; /* what the zero points add to a sum */
    int32_t multiplier, shift;
    int32_t zero_point, lowest, highest;
};

struct ep_softmax {
    int32_t rows, columns;
    const int32_t *exponentials; /* Q31, of how far a code is below its row's highest: 0 to 255 */
};

struct ep_lookup {
    int32_t size;
    const int8_t *table; /* of the input's byte */
};

/* A box of bytes, the innermost axis contiguous in both tensors. */
struct ep_copy {
    int32_t size[4];
    int32_t source_stride[3], target_stride[3];
    int32_t source_offset, target_offset;
};

struct ep_pad {
    int32_t size; /* of the output */
    int32_t value;
    struct ep_copy inside;
};

struct ep_resize_nearest {
    int32_t input_columns, channels;
    int32_t rows, columns;
    const uint16_t *source_row, *source_column; /* of each row and column of the output */
};

/* A convolution. With a residual, `added` holds it, and the output is the sum, which may lie over `added`;
 * without, both are NULL. */
void ep_conv(const struct ep_conv *layer, const int8_t *input, const struct ep_residual *residual, const int8_t *added,
             int8_t *output);

/* The same with a window of one pixel and stride 1; a fully connected layer has its rows as pixels. */
void ep_pointwise(const struct ep_pointwise *layer, const int8_t *input, const struct ep_residual *residual,
                  const int8_t *added, int8_t *output);

/* Depthwise convolution and pools. With a line buffer, of as many padded rows of one channel as the window reaches, the
 * output may begin where the input begins, if no row of it ends after the input rows that its window has read. */
void ep_depthwise(const struct ep_depthwise *layer, const int8_t *input, int8_t *line_buffer, int8_t *output);
void ep_average_pool(const struct ep_pool *layer, const int8_t *input, int8_t *line_buffer, int8_t *output);
void ep_max_pool(const struct ep_pool *layer, const int8_t *input, int8_t *line_buffer, int8_t *output);

/* Elementwise; the output may lie over an operand of its shape. */
void ep_add(const struct ep_add *layer, const int8_t *first, const int8_t *second, int8_t *output);
void ep_mul(const struct ep_mul *layer, const int8_t *first, const int8_t *second, int8_t *output);

/* Any function of a code: RELU, RELU6, LOGISTIC, HARD_SWISH, QUANTIZE. int8 and uint8 are both bytes. In place if
 * wanted. */
void ep_lookup(const struct ep_lookup *layer, const int8_t *input, int8_t *output);

/* Along the rows' columns; in place if wanted. */
void ep_softmax(const struct ep_softmax *layer, const int8_t *input, int8_t *output);

void ep_mean(const struct ep_mean *layer, const int8_t *input, int8_t *output);

/* STRIDED_SLICE, and CONCATENATION tensor by tensor. The target may lie over the source if no byte moves upwards. */
void ep_copy(const struct ep_copy *layer, const int8_t *source, int8_t *target);

void ep_pad(const struct ep_pad *layer, const int8_t *input, int8_t *output);
void ep_resize_nearest(const struct ep_resize_nearest *layer, const int8_t *input, int8_t *output);

#ifdef __cplusplus
}
#endif

#endif
