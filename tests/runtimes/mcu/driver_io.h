/* What the driver needs of where it runs. */
#ifndef DRIVER_IO_H
#define DRIVER_IO_H

#include <stddef.h>
#include <stdint.h>

void read_bytes(void *to, size_t size);
void write_bytes(const void *from, size_t size);
void *allocate(size_t size);
void free_all(void);
void start_ticks(void);
uint32_t ticks_since(void);
_Noreturn void leave(int status);

#endif
