#include "frame.h"

#include <string.h>

#include "board.h"
#include "crc32.h"

uint32_t ep_load_u32(const uint8_t *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

void ep_store_u32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

/* COBS: a count, then as many bytes less one, then a zero that was taken out, unless the count is 255 or the end is
 * reached. Returns how many bytes there were, or -1 if a count points past the end. */
static int unstuff(uint8_t *buffer, size_t size)
{
    size_t from = 0, to = 0;
    while (from < size) {
        const size_t count = buffer[from++];
        if (count == 0 || count - 1 > size - from)
            return -1;
        memmove(buffer + to, buffer + from, count - 1);
        from += count - 1;
        to += count - 1;
        if (count < 255 && from < size)
            buffer[to++] = 0;
    }
    return (int)to;
}

static void send_stuffed(const uint8_t *bytes, size_t size)
{
    size_t from = 0;
    for (;;) {
        size_t run = 0;
        while (run < 254 && from + run < size && bytes[from + run] != 0)
            run++;
        edgepipe_putchar((int)run + 1);
        for (size_t i = 0; i < run; i++)
            edgepipe_putchar(bytes[from + i]);
        from += run;
        if (from == size)
            return;
        if (run < 254)
            from++;
    }
}

int ep_read_frame(uint8_t *buffer, size_t size, struct ep_frame *frame)
{
    const int decoded = unstuff(buffer, size);
    if (decoded < EP_HEADER_BYTES + 4)
        return -1;
    const size_t checked = (size_t)decoded - 4;
    frame->length = buffer[17] | (size_t)buffer[18] << 8;
    if (frame->length != checked - EP_HEADER_BYTES || frame->length > EP_PAYLOAD_BYTES)
        return -1;
    if (ep_load_u32(buffer + checked) != ep_crc32(buffer, checked))
        return -1;
    frame->kind = buffer[0];
    frame->session = ep_load_u32(buffer + 1);
    frame->sequence = ep_load_u32(buffer + 5);
    frame->tile = ep_load_u32(buffer + 9);
    frame->offset = ep_load_u32(buffer + 13);
    return 0;
}

void ep_send_frame(uint8_t *buffer, const struct ep_frame *frame)
{
    buffer[0] = frame->kind;
    ep_store_u32(buffer + 1, frame->session);
    ep_store_u32(buffer + 5, frame->sequence);
    ep_store_u32(buffer + 9, frame->tile);
    ep_store_u32(buffer + 13, frame->offset);
    buffer[17] = (uint8_t)frame->length;
    buffer[18] = (uint8_t)(frame->length >> 8);
    const size_t checked = EP_HEADER_BYTES + frame->length;
    ep_store_u32(buffer + checked, ep_crc32(buffer, checked));
    edgepipe_putchar(0);
    edgepipe_putchar(EP_FRAME_MARK);
    send_stuffed(buffer, checked + 4);
    edgepipe_putchar(0);
}
