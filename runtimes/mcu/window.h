/* Where windows lie. */
#ifndef EDGEPIPE_WINDOW_H
#define EDGEPIPE_WINDOW_H

#include "kernels.h"

static inline int32_t ep_window_rows(const struct ep_image *image, const struct ep_window *window)
{
    const int32_t reach = (window->kernel_rows - 1) * window->dilation_rows + 1;
    return (window->top + image->rows + window->bottom - reach) / window->stride_rows + 1;
}

static inline int32_t ep_window_columns(const struct ep_image *image, const struct ep_window *window)
{
    const int32_t reach = (window->kernel_columns - 1) * window->dilation_columns + 1;
    return (window->left + image->columns + window->right - reach) / window->stride_columns + 1;
}

#endif
