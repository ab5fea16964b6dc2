#include <string.h>

#include "kernels.h"

/* From the first byte to the last, so that the target may lie below the source and reach into it. */
static void move_down(const int8_t *source, int8_t *target, int32_t size)
{
    if (target + size <= source || source + size <= target)
        memcpy(target, source, (size_t)size);
    else if (source != target)
        for (int32_t i = 0; i < size; i++)
            target[i] = source[i];
}

void ep_copy(const struct ep_copy *layer, const int8_t *source, int8_t *target)
{
    const int32_t *size = layer->size, *from = layer->source_stride, *to = layer->target_stride;
    source += layer->source_offset;
    target += layer->target_offset;
    for (int32_t i = 0; i < size[0]; i++)
        for (int32_t j = 0; j < size[1]; j++)
            for (int32_t k = 0; k < size[2]; k++)
                move_down(source + i * from[0] + j * from[1] + k * from[2],
                          target + i * to[0] + j * to[1] + k * to[2], size[3]);
}
