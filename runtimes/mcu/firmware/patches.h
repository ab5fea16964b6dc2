/* An inference that a host drives with frames, patch by patch. */
#ifndef EDGEPIPE_PATCHES_H
#define EDGEPIPE_PATCHES_H

#include "frame.h"

/* Obey a request, whose payload is at buffer + EP_HEADER_BYTES, and answer it. */
void ep_answer_request(uint8_t *buffer, const struct ep_frame *request);

/* Tell the host that something came that is no frame. */
void ep_answer_damage(uint8_t *buffer);

/* Drop the inference: the arena is used for something else. */
void ep_drop_inference(void);

#endif
