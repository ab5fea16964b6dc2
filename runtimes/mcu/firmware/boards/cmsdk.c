/* UART 0 of Arm's MPS boards: the CMSDK APB UART. */
#include "board.h"

#if __ARM_ARCH == 8
#define UART0 0x59303000 /* Corstone-300, secure */
enum { UART0_RX_INTERRUPT = 33 };
#else
#define UART0 0x40004000
enum { UART0_RX_INTERRUPT = 0 };
#endif

#define REGISTER(offset) (*(volatile uint32_t *)(UART0 + (offset)))
#define DATA REGISTER(0)
#define STATE REGISTER(4)
#define CTRL REGISTER(8)
#define INTSTATUS REGISTER(12)
#define BAUDDIV REGISTER(16)

enum { TX_FULL = 1, RX_FULL = 2, TX_ENABLE = 1, RX_ENABLE = 2, RX_INTERRUPT_ENABLE = 8, RX_INTERRUPT = 2 };

#define UART0_HERTZ (EDGEPIPE_CLOCK_MHZ * 1000000u)
EDGEPIPE_REQUIRE_BAUD(UART0_HERTZ, 16);

void edgepipe_board_init(void)
{
    BAUDDIV = EDGEPIPE_DIVISOR(UART0_HERTZ);
    CTRL = TX_ENABLE | RX_ENABLE | RX_INTERRUPT_ENABLE;
}

void edgepipe_wait(void)
{
    edgepipe_sleep(UART0_RX_INTERRUPT);
    INTSTATUS = RX_INTERRUPT;
}

int edgepipe_getchar(void)
{
    return STATE & RX_FULL ? (int)(DATA & 0xff) : -1;
}

void edgepipe_putchar(int byte)
{
    while (STATE & TX_FULL) {
    }
    DATA = (uint32_t)byte & 0xff;
}
