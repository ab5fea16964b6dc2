/* Runs kernels on cases that come in, and sends back what they left in memory. Words are little-endian int32.
 *
 * A case: the kernel's number; its struct, word by word, a word count of bytes and the bytes (padded to words) for each
 * pointer; 1 and a struct ep_residual, or 0; the number of blocks, and each as a pointer's bytes; the number of
 * arguments, and for each its block and offset, or -1 and 0 for NULL. The number -1 ends it all.
 * The answer: ticks that the call took, then the blocks.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "driver_io.h"
#include "kernels.h"

union layer {
    struct ep_conv conv;
    struct ep_pointwise pointwise;
    struct ep_depthwise depthwise;
    struct ep_pool pool;
    struct ep_add add;
    struct ep_mul mul;
    struct ep_mean mean;
    struct ep_softmax softmax;
    struct ep_lookup lookup;
    struct ep_copy copy;
    struct ep_pad pad;
    struct ep_resize_nearest resize_nearest;
};

/* A struct's size, and what it holds in order: words (a digit string, how many) and pointers (p). */
struct form {
    size_t size;
    const char *fields;
};

static const struct form forms[] = {
    {sizeof(struct ep_conv), "15p3ppp"},    {sizeof(struct ep_pointwise), "3p3ppp"},
    {sizeof(struct ep_depthwise), "15p3ppp"}, {sizeof(struct ep_pool), "15"},
    {sizeof(struct ep_pool), "15"},         {sizeof(struct ep_add), "23"},
    {sizeof(struct ep_mul), "19"},          {sizeof(struct ep_mean), "14"},
    {sizeof(struct ep_softmax), "2p"},      {sizeof(struct ep_lookup), "1p"},
    {sizeof(struct ep_copy), "12"},         {sizeof(struct ep_pad), "14"},
    {sizeof(struct ep_resize_nearest), "4pp"},
};

static int32_t read_word(void)
{
    int32_t word;
    read_bytes(&word, sizeof word);
    return word;
}

static void *read_block(int32_t *size)
{
    *size = read_word();
    void *block = allocate((size_t)*size);
    read_bytes(block, (size_t)*size);
    char padding[4];
    read_bytes(padding, (size_t)(-*size & 3));
    return block;
}

static void read_struct(void *structure, const char *form, size_t size)
{
    char *at = structure;
    const char *fields = form;
    while (*fields) {
        if (*fields == 'p') {
            int32_t bytes;
            at += -(uintptr_t)at & (sizeof(void *) - 1);
            *(void **)(void *)at = read_block(&bytes);
            at += sizeof(void *);
            fields++;
            continue;
        }
        int words = 0;
        for (; *fields >= '0' && *fields <= '9'; fields++)
            words = 10 * words + *fields - '0';
        read_bytes(at, 4 * (size_t)words);
        at += 4 * words;
    }
    if (strchr(form, 'p') != NULL)
        at += -(uintptr_t)at & (sizeof(void *) - 1);
    if (at != (char *)structure + size)
        leave(2);
}

static void call(int32_t kernel, const union layer *layer, const struct ep_residual *residual, int8_t *const *arguments)
{
    int8_t *a = arguments[0], *b = arguments[1], *c = arguments[2];
    switch (kernel) {
    case 0: ep_conv(&layer->conv, a, residual, b, c); break;
    case 1: ep_pointwise(&layer->pointwise, a, residual, b, c); break;
    case 2: ep_depthwise(&layer->depthwise, a, b, c); break;
    case 3: ep_average_pool(&layer->pool, a, b, c); break;
    case 4: ep_max_pool(&layer->pool, a, b, c); break;
    case 5: ep_add(&layer->add, a, b, c); break;
    case 6: ep_mul(&layer->mul, a, b, c); break;
    case 7: ep_mean(&layer->mean, a, b); break;
    case 8: ep_softmax(&layer->softmax, a, b); break;
    case 9: ep_lookup(&layer->lookup, a, b); break;
    case 10: ep_copy(&layer->copy, a, b); break;
    case 11: ep_pad(&layer->pad, a, b); break;
    case 12: ep_resize_nearest(&layer->resize_nearest, a, b); break;
    default: leave(3);
    }
}

int main(void)
{
    for (int32_t kernel = read_word(); kernel >= 0; kernel = read_word()) {
        static union layer layer;
        static struct ep_residual residual;
        read_struct(&layer, forms[kernel].fields, forms[kernel].size);
        const int fused = read_word();
        if (fused)
            read_struct(&residual, "15", sizeof residual);
        int8_t *blocks[4], *arguments[3] = {NULL, NULL, NULL};
        int32_t sizes[4];
        const int32_t count = read_word();
        for (int32_t i = 0; i < count; i++)
            blocks[i] = read_block(&sizes[i]);
        const int32_t given = read_word();
        for (int32_t i = 0; i < given; i++) {
            const int32_t block = read_word(), offset = read_word();
            arguments[i] = block < 0 ? NULL : blocks[block] + offset;
        }
        start_ticks();
        call(kernel, &layer, fused ? &residual : NULL, arguments);
        const uint32_t ticks = ticks_since();
        write_bytes(&ticks, sizeof ticks);
        for (int32_t i = 0; i < count; i++)
            write_bytes(blocks[i], (size_t)sizes[i]);
        free_all();
    }
    leave(0);
}
