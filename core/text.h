/*
 * core/text.h - text from other programs (a log's last line, a path), made safe for JSON and
 * terminals.
 */
#ifndef CORE_TEXT_H
#define CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Length in bytes of the UTF-8 sequence at the start of `text`, which ends with a 0 byte. 0: it is
 * not one, or it is an overlong form or a surrogate. */
int text_utf8_length(const char *text);

/* In place: control characters and bytes that are not UTF-8 become '?', so that escape sequences
 * have no effect. A sequence that the end of the text cuts off is removed. Returns text. */
char *text_clean(char *text);

/* Copy the last line of `text` that has anything besides blanks and the characters in `ignored`,
 * cut to `size` bytes; "" when there is none. Lines end with \n or \r. Returns line. */
char *text_last_line(char *line, size_t size, const char *text, const char *ignored);

/* Whether `text` ends with `end` and has more than that. */
bool text_ends_with(const char *text, const char *end);

/* Whether `text` is one of these names, of which the last is NULL. */
bool text_is_one_of(const char *text, const char *const *names);

#endif
