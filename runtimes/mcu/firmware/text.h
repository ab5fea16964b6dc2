/* Text, without the printf of a libc. */
#ifndef EDGEPIPE_TEXT_H
#define EDGEPIPE_TEXT_H

#include <stdint.h>

void ep_print(const char *text);
void ep_print_unsigned(uint64_t number);
void ep_print_hex(uint8_t byte);

/* A number with three places after the point. */
void ep_print_thousandths(int32_t thousandths);

/* The next word of a text whose words are parted by spaces; NULL at the end. *text moves behind it. */
char *ep_next_word(char **text);

/* A whole number of decimal digits; -1 for anything else, and for more than 999999999. */
int32_t ep_read_number(const char *word);

/* The value of two hexadecimal digits, or -1. */
int ep_read_hex(const char *digits);

#endif
