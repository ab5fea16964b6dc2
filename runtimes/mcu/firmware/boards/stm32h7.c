/* STM32H743: 400 MHz from the internal oscillator, USART3 on PD8 (out) and PD9 (in): the Nucleo's ST-LINK. */
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define PWR_CSR1 REGISTER(0x58024804)
#define PWR_CR3 REGISTER(0x5802480c)
#define PWR_D3CR REGISTER(0x58024818)
#define RCC_CR REGISTER(0x58024400)
#define RCC_CFGR REGISTER(0x58024410)
#define RCC_D1CFGR REGISTER(0x58024418)
#define RCC_D2CFGR REGISTER(0x5802441c)
#define RCC_D3CFGR REGISTER(0x58024420)
#define RCC_PLLCKSELR REGISTER(0x58024428)
#define RCC_PLLCFGR REGISTER(0x5802442c)
#define RCC_PLL1DIVR REGISTER(0x58024430)
#define RCC_AHB4ENR REGISTER(0x580244e0)
#define RCC_APB1LENR REGISTER(0x580244e8)
#define FLASH_ACR REGISTER(0x52002000)
#define GPIOD_MODER REGISTER(0x58020c00)
#define GPIOD_AFRH REGISTER(0x58020c24)
#define USART3_CR1 REGISTER(0x40004800)
#define USART3_BRR REGISTER(0x4000480c)
#define USART3_ISR REGISTER(0x4000481c)
#define USART3_ICR REGISTER(0x40004820)
#define USART3_RDR REGISTER(0x40004824)
#define USART3_TDR REGISTER(0x40004828)

enum { VOLTAGE_READY = 1 << 13, PLL_ON = 1 << 24, PLL_READY = 1 << 25 };
enum { OVERRUN = 1 << 3, RX_FULL = 1 << 5, TX_EMPTY = 1 << 7 };

static void use_pll(void)
{
    PWR_CR3 = (PWR_CR3 & ~4u) | 2; /* the core's voltage from the LDO */
    while (!(PWR_CSR1 & VOLTAGE_READY)) {
    }
    PWR_D3CR |= 3 << 14; /* the voltage for 400 MHz */
    while (!(PWR_D3CR & VOLTAGE_READY)) {
    }
    FLASH_ACR = 2 | 2 << 4;
    RCC_D1CFGR = 8 | 4 << 4; /* the buses at 200 MHz, their peripherals at 100 MHz */
    RCC_D2CFGR = 4 << 4 | 4 << 8;
    RCC_D3CFGR = 4 << 4;
    RCC_PLLCKSELR = 4 << 4; /* 64 MHz / 4 * 50 / 2 */
    RCC_PLLCFGR = 3 << 2 | 1 << 16;
    RCC_PLL1DIVR = 49 | 1 << 9 | 1 << 16 | 1 << 24;
    RCC_CR |= PLL_ON;
    while (!(RCC_CR & PLL_READY)) {
    }
    RCC_CFGR = 3;
    while ((RCC_CFGR & 7 << 3) != 3 << 3) {
    }
}

#define USART3_HERTZ (EDGEPIPE_CLOCK_MHZ / 4 * 1000000u)
EDGEPIPE_REQUIRE_BAUD(USART3_HERTZ, 16);

void edgepipe_board_init(void)
{
    use_pll();
    RCC_AHB4ENR |= 1 << 3;
    RCC_APB1LENR |= 1 << 18;
    (void)RCC_APB1LENR; /* the clock is there after a read */
    GPIOD_AFRH = (GPIOD_AFRH & ~0xffu) | 7 | 7 << 4;
    GPIOD_MODER = (GPIOD_MODER & ~(0xfu << 16)) | 0xau << 16;
    USART3_BRR = EDGEPIPE_DIVISOR(USART3_HERTZ);
    USART3_CR1 = 1 << 3 | 1 << 2 | 1; /* out, in, on */
}

int edgepipe_getchar(void)
{
    USART3_ICR = OVERRUN; /* which would stop the receiver */
    return USART3_ISR & RX_FULL ? (int)(USART3_RDR & 0xff) : -1;
}

void edgepipe_putchar(int byte)
{
    while (!(USART3_ISR & TX_EMPTY)) {
    }
    USART3_TDR = (uint32_t)byte & 0xff;
}
