/* nRF52840: 64 MHz from reset, UART0 on P1.03 (out) and P1.10 (in): TX and RX of the Arduino Nano 33 BLE. */
#include "board.h"

#define REGISTER(offset) (*(volatile uint32_t *)(0x40002000 + (offset)))
#define START_RX REGISTER(0x000)
#define START_TX REGISTER(0x008)
#define RX_READY REGISTER(0x108)
#define TX_READY REGISTER(0x11c)
#define ENABLE REGISTER(0x500)
#define TX_PIN REGISTER(0x50c)
#define RX_PIN REGISTER(0x514)
#define RX_BYTE REGISTER(0x518)
#define TX_BYTE REGISTER(0x51c)
#define BAUD_RATE REGISTER(0x524)

enum { PORT_1 = 1 << 5 };

_Static_assert(EDGEPIPE_BAUD <= 1000000, "the serial port of this board has no such BAUD");

void edgepipe_board_init(void)
{
    TX_PIN = PORT_1 | 3;
    RX_PIN = PORT_1 | 10;
    /* 2**32 for 16 MHz, in its upper 20 bits. */
    BAUD_RATE = (uint32_t)((((uint64_t)EDGEPIPE_BAUD << 32) / 16000000 + 0x800) & 0xfffff000);
    ENABLE = 4;
    START_RX = 1;
    START_TX = 1;
}

int edgepipe_getchar(void)
{
    if (!RX_READY)
        return -1;
    RX_READY = 0;
    return (int)(RX_BYTE & 0xff);
}

void edgepipe_putchar(int byte)
{
    TX_READY = 0;
    TX_BYTE = (uint32_t)byte & 0xff;
    while (!TX_READY) {
    }
}
