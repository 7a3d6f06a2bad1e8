/** Text work shared by methods and filters: case, stripping, splitting, replacing. By code points. Internal to model/chat. */
#ifndef US_MODEL_CHAT_TEXT_H
#define US_MODEL_CHAT_TEXT_H

#include "model/chat/value.h"

/** The buffer as a value; the buffer is freed whatever happens. */
bool chat_take(chat_run *r, us_buf *b, bool ok, chat_value *out);
void chat_encode(uint32_t c, us_buf *out);
/** Upper or lower case of one code point, one to one; no locale. */
uint32_t chat_upper(uint32_t c);
uint32_t chat_lower(uint32_t c);
bool chat_is_alpha(uint32_t c); /* a letter */
bool chat_is_numeric(uint32_t c, bool decimal); /* a number of any kind, or a decimal digit */
/** mode: 'u' upper, 'l' lower, 'c' capitalize, 't' title as str.title, 'T' title as the filter (after white space and -([{< only), 's' swapcase. */
bool chat_recase(chat_run *r, us_str s, char mode, chat_value *out);
/** sides: 1 left, 2 right, 3 both; set: characters to drop, NULL = white space. */
us_str chat_strip(us_str s, const us_str *set, int sides);
/** Byte position of needle in s at or after from; SIZE_MAX when absent. */
size_t chat_find(us_str s, us_str needle, size_t from);
size_t chat_rfind(us_str s, us_str needle);
/** max < 0: all. */
bool chat_replace(chat_run *r, us_str s, us_str old, us_str with, int64_t max, chat_value *out);

#endif
