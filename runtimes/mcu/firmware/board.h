/* What every board gives to the program that runs on it. */
#ifndef EDGEPIPE_BOARD_H
#define EDGEPIPE_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Start clocks and the serial port; called once before main. */
void edgepipe_board_init(void);

/* The next byte of the serial port, 0 to 255, or -1 if none has come yet. */
int edgepipe_getchar(void);

/* Wait for the serial port: sleep until a byte may have come, or, where a board cannot, return at once. */
void edgepipe_wait(void);

/* Send a byte; waits until the port takes it. */
void edgepipe_putchar(int byte);

/* Cycles of the processor's clock since the start, EDGEPIPE_CLOCK_MHZ to a microsecond. */
uint64_t edgepipe_cycles(void);

/* Whether this is an emulator, whose clock tells no time. */
bool edgepipe_is_emulated(void);

/* Bytes of the stack, and how many of them have been used since the start: it was painted then. */
size_t edgepipe_stack_bytes(void);
size_t edgepipe_stack_peak_bytes(void);

/* For edgepipe_wait: sleep until this interrupt of the board, or any other, is there. It has no handler. */
void edgepipe_sleep(unsigned interrupt);

/* By what a serial port divides a clock of so many hertz, to the nearest; `least` is the smallest that it can. A build
 * fails where the port would be off by more than 2 %: with as much at the other end, bits are mistaken. */
#define EDGEPIPE_DIVISOR(hertz) (((uint64_t)(hertz) + EDGEPIPE_BAUD / 2) / EDGEPIPE_BAUD)
#define EDGEPIPE_REQUIRE_BAUD(hertz, least)                                                                        \
    _Static_assert(EDGEPIPE_DIVISOR(hertz) >= (least) &&                                                           \
                       EDGEPIPE_DIVISOR(hertz) * EDGEPIPE_BAUD * 50 <= (uint64_t)(hertz) * 51 &&                   \
                       EDGEPIPE_DIVISOR(hertz) * EDGEPIPE_BAUD * 50 >= (uint64_t)(hertz) * 49,                     \
                   "the serial port of this board has no such BAUD")

#endif
