/*
 * core/text.h - text from other programs (a log's last line, a path), made safe for JSON and
 * terminals.
 */
#ifndef CORE_TEXT_H
#define CORE_TEXT_H

/* Length in bytes of the UTF-8 sequence at the start of `text`, which ends with a 0 byte. 0: it is
 * not one, or it is an overlong form or a surrogate. */
int text_utf8_length(const char *text);

/* In place: control characters and bytes that are not UTF-8 become '?', so that escape sequences
 * have no effect. A sequence that the end of the text cuts off is removed. Returns text. */
char *text_clean(char *text);

#endif
