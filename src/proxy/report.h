/** Reports of proxy and verify: a text and a JSON object, built side by side. Not the report layer (src/report): no files, no plots. */
#ifndef US_PROXY_REPORT_H
#define US_PROXY_REPORT_H

#include "proxy/write.h"
#include "understudy/us_proxy.h"

struct us_report {
    us_buf text, json;
};

us_status us_report_create(us_report **out, us_err *err) US_WARN_UNUSED;

/** One rung. folder: where it is or would be; hashes NULL for a dry run. */
void us_report_rung(us_report *r, const us_plan *p, const char *folder, const us_hashes *hashes);

/** What the user must change elsewhere (requirements 12, 22, 23, 24). */
void us_report_advice(us_report *r, const us_structure *s, const us_plan *const *plans, size_t n);

/** The kept experts of every cut block as a JSON object: "prefix": [ids]. */
void us_report_kept(us_buf *b, const us_plan *p);

#endif
