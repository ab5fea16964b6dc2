/* STM32F746: 216 MHz from the internal oscillator, USART1 on PA9 (out) and PB7 (in): the Discovery's ST-LINK. */
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define RCC_CR REGISTER(0x40023800)
#define RCC_PLLCFGR REGISTER(0x40023804)
#define RCC_CFGR REGISTER(0x40023808)
#define RCC_AHB1ENR REGISTER(0x40023830)
#define RCC_APB1ENR REGISTER(0x40023840)
#define RCC_APB2ENR REGISTER(0x40023844)
#define FLASH_ACR REGISTER(0x40023c00)
#define PWR_CR1 REGISTER(0x40007000)
#define PWR_CSR1 REGISTER(0x40007004)
#define GPIOA_MODER REGISTER(0x40020000)
#define GPIOA_AFRH REGISTER(0x40020024)
#define GPIOB_MODER REGISTER(0x40020400)
#define GPIOB_AFRL REGISTER(0x40020420)
#define USART1_CR1 REGISTER(0x40011000)
#define USART1_BRR REGISTER(0x4001100c)
#define USART1_ISR REGISTER(0x4001101c)
#define USART1_ICR REGISTER(0x40011020)
#define USART1_RDR REGISTER(0x40011024)
#define USART1_TDR REGISTER(0x40011028)

enum { PLL_ON = 1 << 24, PLL_READY = 1 << 25, OVERRUN = 1 << 3, RX_FULL = 1 << 5, TX_EMPTY = 1 << 7 };
enum { OVERDRIVE = 1 << 16, OVERDRIVE_SWITCH = 1 << 17 }; /* ready at the same bits */

static void use_pll(void)
{
    RCC_APB1ENR |= 1 << 28;
    RCC_PLLCFGR = 8 | 216 << 6 | 9 << 24; /* 16 MHz / 8 * 216 / 2 */
    RCC_CR |= PLL_ON;
    PWR_CR1 |= OVERDRIVE;
    while (!(PWR_CSR1 & OVERDRIVE)) {
    }
    PWR_CR1 |= OVERDRIVE_SWITCH;
    while (!(PWR_CSR1 & OVERDRIVE_SWITCH)) {
    }
    FLASH_ACR = 7 | 3 << 8;       /* wait states; prefetch and accelerator */
    RCC_CFGR = 5 << 10 | 4 << 13; /* APB1 at a quarter, APB2 at half of it */
    while (!(RCC_CR & PLL_READY)) {
    }
    RCC_CFGR |= 2;
    while ((RCC_CFGR & 3 << 2) != 2 << 2) {
    }
}

#define USART1_HERTZ (EDGEPIPE_CLOCK_MHZ / 2 * 1000000u)
EDGEPIPE_REQUIRE_BAUD(USART1_HERTZ, 16);

void edgepipe_board_init(void)
{
    use_pll();
    RCC_AHB1ENR |= 3;
    RCC_APB2ENR |= 1 << 4;
    GPIOA_AFRH = (GPIOA_AFRH & ~(0xfu << 4)) | 7 << 4;
    GPIOA_MODER = (GPIOA_MODER & ~(3u << 18)) | 2u << 18;
    GPIOB_AFRL = (GPIOB_AFRL & ~(0xfu << 28)) | 7u << 28;
    GPIOB_MODER = (GPIOB_MODER & ~(3u << 14)) | 2u << 14;
    USART1_BRR = EDGEPIPE_DIVISOR(USART1_HERTZ);
    USART1_CR1 = 1 << 3 | 1 << 2 | 1; /* out, in, on */
}

int edgepipe_getchar(void)
{
    USART1_ICR = OVERRUN; /* which would stop the receiver */
    return USART1_ISR & RX_FULL ? (int)(USART1_RDR & 0xff) : -1;
}

void edgepipe_putchar(int byte)
{
    while (!(USART1_ISR & TX_EMPTY)) {
    }
    USART1_TDR = (uint32_t)byte & 0xff;
}
