/*
 * core/text.h - words of strangers (a log's last line, a path), made fit for JSON and a terminal.
 */
#ifndef CORE_TEXT_H
#define CORE_TEXT_H

/* Bytes of the UTF-8 sequence at p (shortest form, no surrogates), 0: it is none. p is
 * 0-terminated. */
int text_utf8_length(const char *p);

/* In place: control characters and bytes that are not UTF-8 become '?', so that escape sequences
 * do nothing; a sequence that was cut off at the end goes. Returns text. */
char *text_clean(char *text);

#endif
