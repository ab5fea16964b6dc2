/* What comes over the serial line: commands (commands.h) and frames (frame.h), told apart by their first byte. */
#ifndef EDGEPIPE_PROTOCOL_H
#define EDGEPIPE_PROTOCOL_H

#include <stdint.h>

/* Take the next byte that has come; what it completes is obeyed and answered before this returns. */
void ep_receive(uint8_t byte);

#endif
