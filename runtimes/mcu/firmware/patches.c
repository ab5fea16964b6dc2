#include "patches.h"

#include <stdbool.h>
#include <string.h>

#include "board.h"
#include "edgepipe_model.h"
#include "profile.h"

static struct {
    bool begun;
    uint32_t session;
    uint32_t tile;     /* the next to be computed; the number of tiles stands for the rest of the model */
    size_t received;   /* bytes of its window */
    uint64_t cycles;
    const int8_t *output; /* NULL until all is computed */
} inference;

void ep_drop_inference(void)
{
    inference.begun = false;
}

static void answer(uint8_t *buffer, const struct ep_frame *request, uint8_t kind, size_t length)
{
    const struct ep_frame frame = {
        .kind = kind,
        .session = request->session,
        .sequence = request->sequence,
        .tile = inference.tile,
        .offset = (uint32_t)inference.received,
        .length = length,
    };
    ep_send_frame(buffer, &frame);
}

static void refuse(uint8_t *buffer, const struct ep_frame *request, uint8_t reason)
{
    buffer[EP_HEADER_BYTES] = reason;
    answer(buffer, request, EP_REFUSED, 1);
}

/* Numbers of four bytes; returns the place behind them. */
static uint8_t *write_numbers(uint8_t *to, const uint32_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++, to += 4)
        ep_store_u32(to, numbers[i]);
    return to;
}

static uint8_t *write_long(uint8_t *to, uint64_t number)
{
    return write_numbers(to, (const uint32_t[]){(uint32_t)number, (uint32_t)(number >> 32)}, 2);
}

static void answer_progress(uint8_t *buffer, const struct ep_frame *request)
{
    write_long(buffer + EP_HEADER_BYTES, inference.cycles);
    answer(buffer, request, (uint8_t)(request->kind + EP_ANSWER), 8);
}

_Static_assert(EP_PAYLOAD_BYTES >= 128 && EP_PAYLOAD_BYTES < 65536, "a greeting must fit, and lengths have two bytes");
enum { LAYER_BYTES = 13 }; /* before a layer's name, which has EP_NAME_BYTES at most */
_Static_assert(LAYER_BYTES + EP_NAME_BYTES <= EP_PAYLOAD_BYTES, "a layer must fit");

static void hello(uint8_t *buffer, const struct ep_frame *request)
{
    static const char hash[] = EDGEPIPE_MODEL_HASH;
    const uint32_t numbers[] = {
        EP_PROTOCOL_VERSION,   edgepipe_tiles(),
        EDGEPIPE_INPUT_BYTES,  EDGEPIPE_OUTPUT_BYTES,
        EDGEPIPE_LARGEST_PATCH_BYTES, EP_PAYLOAD_BYTES,
        EDGEPIPE_LAYERS,       EDGEPIPE_CLOCK_MHZ,
        edgepipe_is_emulated(),
    };
    uint8_t *const payload = buffer + EP_HEADER_BYTES;
    uint8_t *const end = write_numbers(payload, numbers, sizeof numbers / sizeof *numbers);
    memcpy(end, hash, sizeof hash - 1);
    answer(buffer, request, EP_HELLO + EP_ANSWER, (size_t)(end - payload) + sizeof hash - 1);
}

static void begin(uint8_t *buffer, const struct ep_frame *request)
{
    if (!inference.begun || inference.session != request->session) {
        memset(&inference, 0, sizeof inference);
        inference.begun = true;
        inference.session = request->session;
        edgepipe_paint_arena();
        edgepipe_init();
        edgepipe_reset_layers();
    }
    answer_progress(buffer, request);
}

static bool is_computed(uint32_t tile)
{
    return tile < inference.tile || (tile == inference.tile && inference.output != NULL);
}

static void take_patch(uint8_t *buffer, const struct ep_frame *request)
{
    const size_t end = request->offset + request->length, received = inference.received;
    if (!is_computed(request->tile)) {
        if (request->tile != inference.tile || request->offset > received || end < request->offset ||
            end > edgepipe_patch_bytes(request->tile)) {
            refuse(buffer, request, EP_OUT_OF_ORDER);
            return;
        }
        if (end > received) { /* else these bytes have come before */
            const uint8_t *const fresh = buffer + EP_HEADER_BYTES + (received - request->offset);
            memcpy(edgepipe_patch() + received, fresh, end - received);
            inference.received = end;
        }
    }
    answer_progress(buffer, request);
}

static void run(uint8_t *buffer, const struct ep_frame *request)
{
    if (!is_computed(request->tile)) {
        const bool is_rest = request->tile == edgepipe_tiles();
        if (request->tile != inference.tile || (!is_rest && inference.received != edgepipe_patch_bytes(request->tile))) {
            refuse(buffer, request, EP_OUT_OF_ORDER);
            return;
        }
        answer(buffer, request, EP_BUSY, 0);
        const uint64_t start = edgepipe_cycles();
        if (is_rest) {
            inference.output = edgepipe_finish();
        } else if (edgepipe_push_patch(request->tile) == 0) {
            inference.tile++;
            inference.received = 0;
        }
        if (!is_computed(request->tile)) {
            refuse(buffer, request, EP_OUT_OF_ORDER);
            return;
        }
        inference.cycles += edgepipe_cycles() - start;
    }
    answer_progress(buffer, request);
}

/* Of a payload that says how many bytes to send. */
static size_t wanted_bytes(const uint8_t *buffer)
{
    return buffer[EP_HEADER_BYTES] | (size_t)buffer[EP_HEADER_BYTES + 1] << 8;
}

/* Answer with a piece of something longer: from the request's offset on. */
static void answer_from(uint8_t *buffer, const struct ep_frame *request, size_t length)
{
    const struct ep_frame frame = {
        .kind = (uint8_t)(request->kind + EP_ANSWER),
        .session = request->session,
        .sequence = request->sequence,
        .tile = inference.tile,
        .offset = request->offset,
        .length = length,
    };
    ep_send_frame(buffer, &frame);
}

static void send_output(uint8_t *buffer, const struct ep_frame *request)
{
    if (inference.output == NULL || request->length != 2 || request->offset > EDGEPIPE_OUTPUT_BYTES) {
        refuse(buffer, request, EP_OUT_OF_ORDER);
        return;
    }
    uint8_t *const payload = buffer + EP_HEADER_BYTES;
    const size_t wanted = wanted_bytes(buffer), left = EDGEPIPE_OUTPUT_BYTES - request->offset;
    size_t length = wanted < left ? wanted : left;
    length = length < EP_PAYLOAD_BYTES ? length : EP_PAYLOAD_BYTES;
    memcpy(payload, inference.output + request->offset, length);
    answer_from(buffer, request, length);
}

/* As many layers as are wanted, but one at least. */
static void send_layers(uint8_t *buffer, const struct ep_frame *request)
{
    if (request->length != 2 || request->offset >= EDGEPIPE_LAYERS) {
        refuse(buffer, request, EP_OUT_OF_ORDER);
        return;
    }
    uint8_t *const payload = buffer + EP_HEADER_BYTES, *end = payload;
    const size_t wanted = wanted_bytes(buffer), most = wanted < EP_PAYLOAD_BYTES ? wanted : EP_PAYLOAD_BYTES;
    for (size_t i = request->offset; i < EDGEPIPE_LAYERS; i++) {
        const char *const name = edgepipe_layer_names[i];
        const size_t length = strlen(name), bytes = LAYER_BYTES + length;
        if (end != payload && (size_t)(end - payload) + bytes > most)
            break;
        ep_store_u32(end, edgepipe_layer_calls[i]);
        write_long(end + 4, edgepipe_layer_cycles[i]);
        end[LAYER_BYTES - 1] = (uint8_t)length;
        memcpy(end + LAYER_BYTES, name, length);
        end += bytes;
    }
    answer_from(buffer, request, (size_t)(end - payload));
}

static void tell_memory(uint8_t *buffer, const struct ep_frame *request)
{
    const uint32_t numbers[] = {
        EDGEPIPE_ARENA_BYTES,
        (uint32_t)edgepipe_arena_peak_bytes(),
        (uint32_t)edgepipe_stack_bytes(),
        (uint32_t)edgepipe_stack_peak_bytes(),
    };
    write_numbers(buffer + EP_HEADER_BYTES, numbers, sizeof numbers / sizeof *numbers);
    answer(buffer, request, EP_MEMORY + EP_ANSWER, sizeof numbers);
}

void ep_answer_request(uint8_t *buffer, const struct ep_frame *request)
{
    if (request->kind == EP_HELLO)
        hello(buffer, request);
    else if (request->kind == EP_MEMORY)
        tell_memory(buffer, request);
    else if (request->kind == EP_BEGIN)
        begin(buffer, request);
    else if (request->kind < EP_PATCH || request->kind > EP_LAYERS)
        refuse(buffer, request, EP_UNKNOWN);
    else if (!inference.begun || inference.session != request->session)
        refuse(buffer, request, EP_OTHER_SESSION);
    else if (request->kind == EP_PATCH)
        take_patch(buffer, request);
    else if (request->kind == EP_RUN)
        run(buffer, request);
    else if (request->kind == EP_LAYERS)
        send_layers(buffer, request);
    else
        send_output(buffer, request);
}

void ep_answer_damage(uint8_t *buffer)
{
    const struct ep_frame frame = {.kind = EP_DAMAGED};
    ep_send_frame(buffer, &frame);
}
