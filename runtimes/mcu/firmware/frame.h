/* Frames between host and board, each checked by its length and a CRC-32.
 *
 *     0x00 0xed COBS(kind, session, sequence, tile, offset, length, payload, CRC-32) 0x00
 *
 * kind is a byte, length has two bytes, session, sequence, tile, offset and CRC-32 have four, the lowest first. COBS
 * (Cheshire and Baker, Consistent Overhead Byte Stuffing, 1999) leaves no zero byte inside: whatever a line did to a
 * frame, the next zero ends it. The CRC-32 is over all that stands before it.
 *
 * Requests, and what `tile`, `offset` and the payload mean in them:
 *     HELLO    what runs here? Answered with numbers of four bytes: EP_PROTOCOL_VERSION, EDGEPIPE_TILES, the model's
 *              EDGEPIPE_INPUT_BYTES, EDGEPIPE_OUTPUT_BYTES, EDGEPIPE_LARGEST_PATCH_BYTES, EP_PAYLOAD_BYTES,
 *              EDGEPIPE_LAYERS, EDGEPIPE_CLOCK_MHZ, 1 if the board is emulated; and the model's hash, 64 hexadecimal
 *              digits
 *     BEGIN    an inference by the name of `session`. If it has begun already, it stays as it is
 *     PATCH    bytes of the window of `tile`, from `offset` on
 *     RUN      compute `tile` from its window, or the rest of the model if `tile` is the number of tiles
 *     OUTPUT   send a piece of the output from `offset` on; two bytes of payload say how many bytes at most
 *     MEMORY   answered with EDGEPIPE_ARENA_BYTES, the arena's peak, the stack's bytes, the stack's peak
 *     LAYERS   send layers from number `offset` on, one at least; two bytes of payload say how many bytes at most. Of
 *              each layer: how often it ran in this inference (four bytes), its cycles (eight), the length of its name
 *              (one), its name
 *
 * A request is answered with its kind + EP_ANSWER, its session and its sequence number, and with the place the
 * inference has come to: the next tile, and how many bytes of its window are here. BEGIN, PATCH and RUN are answered
 * with the cycles of the processor's clock that this inference has taken so far (eight bytes). A request that has been obeyed before is answered again and
 * changes nothing, so that a host may repeat any until an answer comes. Other kinds of answers:
 *     BUSY     RUN is understood; its answer follows when the tile is computed
 *     REFUSED  the payload's one byte says why: EP_OTHER_SESSION, EP_OUT_OF_ORDER, EP_UNKNOWN
 *     DAMAGED  something came that is no frame; session and sequence are 0
 */
#ifndef EDGEPIPE_FRAME_H
#define EDGEPIPE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define EP_PROTOCOL_VERSION 2

/* The longest payload, in both directions. */
#ifndef EP_PAYLOAD_BYTES
#define EP_PAYLOAD_BYTES 1024
#endif

enum {
    EP_HELLO = 1,
    EP_BEGIN = 2,
    EP_PATCH = 3,
    EP_RUN = 4,
    EP_OUTPUT = 5,
    EP_MEMORY = 6,
    EP_LAYERS = 7,
    EP_ANSWER = 0x80,
    EP_BUSY = 0xf0,
    EP_REFUSED = 0xf1,
    EP_DAMAGED = 0xf2,
};

enum { EP_OTHER_SESSION = 1, EP_OUT_OF_ORDER = 2, EP_UNKNOWN = 3 };

enum {
    EP_FRAME_MARK = 0xed,
    EP_HEADER_BYTES = 19,
    EP_NAME_BYTES = 96,
    EP_FRAME_BYTES = EP_HEADER_BYTES + EP_PAYLOAD_BYTES + 4,
    EP_ENCODED_BYTES = EP_FRAME_BYTES + EP_FRAME_BYTES / 254 + 1,
};

struct ep_frame {
    uint8_t kind;
    uint32_t session, sequence, tile, offset;
    size_t length;
};

uint32_t ep_load_u32(const uint8_t *from);
void ep_store_u32(uint8_t *to, uint32_t value);

/* Decode, in place, what stood between 0xed and 0x00; the payload is then at buffer + EP_HEADER_BYTES. -1: damaged. */
int ep_read_frame(uint8_t *buffer, size_t size, struct ep_frame *frame);

/* Send a frame whose payload is at buffer + EP_HEADER_BYTES; the rest of the buffer, EP_FRAME_BYTES, is written to. */
void ep_send_frame(uint8_t *buffer, const struct ep_frame *frame);

#endif
