#include "text.h"

#include <stddef.h>

#include "board.h"

void ep_print(const char *text)
{
    while (*text != '\0')
        edgepipe_putchar((unsigned char)*text++);
}

void ep_print_unsigned(uint64_t number)
{
    char digits[21], *first = digits + sizeof digits - 1;
    *first = '\0';
    do
        *--first = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    ep_print(first);
}

void ep_print_hex(uint8_t byte)
{
    static const char digits[] = "0123456789abcdef";
    edgepipe_putchar(digits[byte >> 4]);
    edgepipe_putchar(digits[byte & 15]);
}

void ep_print_thousandths(int32_t thousandths)
{
    const uint32_t magnitude = thousandths < 0 ? 0 - (uint32_t)thousandths : (uint32_t)thousandths;
    if (thousandths < 0)
        edgepipe_putchar('-');
    ep_print_unsigned(magnitude / 1000);
    edgepipe_putchar('.');
    for (uint32_t place = 100; place > 0; place /= 10)
        edgepipe_putchar((int)('0' + magnitude / place % 10));
}

char *ep_next_word(char **text)
{
    char *word = *text;
    while (*word == ' ')
        word++;
    if (*word == '\0')
        return NULL;
    char *end = word;
    while (*end != ' ' && *end != '\0')
        end++;
    *text = end;
    if (*end == ' ') {
        *end = '\0';
        *text = end + 1;
    }
    return word;
}

int32_t ep_read_number(const char *word)
{
    int32_t number = 0;
    int digits = 0;
    for (; *word >= '0' && *word <= '9' && digits < 9; word++, digits++)
        number = number * 10 + (*word - '0');
    return digits > 0 && *word == '\0' ? number : -1;
}

static int read_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    if (digit >= 'a' && digit <= 'f')
        return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F')
        return digit - 'A' + 10;
    return -1;
}

int ep_read_hex(const char *digits)
{
    const int high = read_digit(digits[0]);
    const int low = high < 0 ? -1 : read_digit(digits[1]);
    return low < 0 ? -1 : high * 16 + low;
}
