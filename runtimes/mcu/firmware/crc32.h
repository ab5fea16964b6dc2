/* CRC-32 as zlib, Ethernet and PNG have it: polynomial 0x04c11db7 reflected, begun and ended with all bits inverted. */
#ifndef EDGEPIPE_CRC32_H
#define EDGEPIPE_CRC32_H

#include <stddef.h>
#include <stdint.h>

uint32_t ep_crc32(const uint8_t *bytes, size_t size);

#endif
