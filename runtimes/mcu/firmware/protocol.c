#include "protocol.h"

#include <stdbool.h>
#include <stddef.h>

#include "commands.h"
#include "frame.h"
#include "patches.h"

static uint8_t buffer[EP_ENCODED_BYTES];
static size_t length;      /* bytes of what is coming */
static bool is_begun, is_frame, is_too_long;

static void start_anew(void)
{
    length = 0;
    is_begun = is_frame = is_too_long = false;
}

static void end_command(void)
{
    if (is_too_long || length == sizeof buffer) {
        ep_answer_long_command();
        return;
    }
    buffer[length] = '\0';
    ep_answer_command((char *)buffer);
}

static void end_frame(void)
{
    struct ep_frame request;
    if (is_too_long || !is_frame || ep_read_frame(buffer, length, &request) != 0) {
        ep_answer_damage(buffer);
        return;
    }
    if (request.kind == EP_BEGIN)
        ep_drop_image();
    ep_answer_request(buffer, &request);
}

void ep_receive(uint8_t byte)
{
    if (byte == 0) {
        if (is_begun)
            end_frame();
        start_anew();
    } else if (!is_begun && byte == EP_FRAME_MARK) {
        is_begun = is_frame = true;
    } else if (!is_frame && byte == '%') {
        end_command();
        start_anew();
    } else if (!is_frame && (byte == '\r' || byte == '\n')) {
        return; /* from a terminal */
    } else {
        is_begun = true;
        if (length < sizeof buffer)
            buffer[length++] = byte;
        else
            is_too_long = true;
    }
}
