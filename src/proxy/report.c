/** Reports of proxy. Header: report.h. */
#include "proxy/report.h"

#include <string.h>

us_status us_report_create(us_report **out, us_err *err) {
    us_report *r = us_calloc(1, sizeof *r);
    if (!r) return us_fail_nomem(err, "reporting");
    *out = r;
    return US_OK;
}

void us_report_free(us_report *r) {
    if (!r) return;
    us_buf_free(&r->text);
    us_buf_free(&r->json);
    us_free(r);
}

const char *us_report_text(const us_report *r) {
    return us_buf_text((us_buf *)(uintptr_t)&r->text);
}

const char *us_report_json(const us_report *r) {
    return us_buf_text((us_buf *)(uintptr_t)&r->json);
}

static void json_changes(us_buf *b, const us_plan *p) {
    us_buf_z(b, "\"config_changes\": [");
    for (size_t i = 0; i < p->n_edits; i++) {
        const us_plan_edit *e = &p->edits[i];
        us_buf_printf(b, "%s{\"file\": \"%s\", \"path\": ", i ? ", " : "", e->file);
        us_buf_json(b, us_str_z(e->path));
        us_buf_printf(b, ", \"from\": %s, \"to\": %s}", e->from ? e->from : "\"...\"", e->to ? e->to : e->removed ? "null" : "\"...\"");
    }
    us_buf_z(b, "], ");
}

void us_report_kept(us_buf *b, const us_plan *p) {
    bool first = true;
    us_buf_z(b, "{");
    for (size_t k = 0; k < p->s->n_blocks; k++) {
        if (!p->active[k]) continue;
        us_buf_z(b, first ? "" : ", ");
        us_buf_json(b, us_str_z(p->s->blocks[k].key));
        us_buf_z(b, ": [");
        for (uint32_t j = 0; j < p->keep->n; j++) us_buf_printf(b, "%s%u", j ? ", " : "", us_keep_ids(p->keep, k)[j]);
        us_buf_c(b, ']');
        first = false;
    }
    us_buf_c(b, '}');
}

static void json_rung(us_buf *b, const us_plan *p, const char *folder, const us_hashes *h) {
    const us_checkpoint *ck = p->s->ck;
    bool first = true;
    us_buf_printf(b, "{\"experts\": %u, \"folder\": ", p->keep->n);
    us_buf_json(b, us_str_z(folder));
    us_buf_printf(b, ", \"layers\": %u, \"tensors\": {\"written\": %zu, \"dropped\": %zu, \"renamed\": %zu, \"sliced\": %zu, \"copied\": %zu}, ",
                  p->cut.n_new, p->n_tensors, p->n_dropped, p->n_renamed, p->n_sliced, p->n_copied);
    us_buf_printf(b, "\"bytes\": %llu, \"parameters\": %llu, \"shards\": [", (unsigned long long)p->total_bytes, (unsigned long long)p->total_elements);
    for (size_t i = 0; i < p->n_shards; i++) us_buf_printf(b, "%s{\"name\": \"%s\", \"bytes\": %llu}", i ? ", " : "", p->shards[i].name, (unsigned long long)p->shards[i].data_bytes);
    us_buf_z(b, "], ");
    json_changes(b, p);
    us_buf_z(b, "\"files\": [");
    for (size_t i = 0; i < ck->n_others; i++) {
        if (!us_write_copies(&ck->others[i])) continue;
        us_buf_z(b, first ? "" : ", ");
        us_buf_json(b, us_str_z(ck->others[i].name));
        first = false;
    }
    us_buf_z(b, "], \"not_copied\": [");
    for (size_t i = 0; i < ck->n_left_out; i++) {
        us_buf_z(b, i ? ", " : "");
        us_buf_json(b, us_str_z(ck->left_out[i].name));
    }
    us_buf_z(b, "], \"unknown_tensors\": [");
    first = true;
    for (size_t i = 0; i < p->n_tensors; i++) {
        if (p->s->roles[p->tensors[i].src].kind != US_ROLE_UNKNOWN) continue;
        us_buf_z(b, first ? "" : ", ");
        us_buf_json(b, p->tensors[i].name);
        first = false;
    }
    us_buf_c(b, ']');
    if (h) us_buf_printf(b, ", \"token_table_rows_changed\": %llu", (unsigned long long)h->table_rows_changed);
    us_buf_z(b, ", \"kept\": ");
    us_report_kept(b, p);
    us_buf_c(b, '}');
}

/* A value fit for a line of text. */
static const char *shown(const char *raw, const char *otherwise) {
    return raw && strlen(raw) < 60 && !strchr(raw, '\n') ? raw : otherwise;
}

void us_report_rung(us_report *r, const us_plan *p, const char *folder, const us_hashes *h) {
    char bytes[24], params[24];
    const us_checkpoint *ck = p->s->ck;
    us_buf *b = &r->text;
    us_buf_printf(b, "%s: %u of %u experts in %zu MoE layers, %s parameters, %s in %zu file%s\n", folder, p->keep->n, p->s->n_experts, p->s->n_blocks,
                  us_format_count(p->total_elements, params), us_format_bytes(p->total_bytes, bytes), p->n_shards, p->n_shards == 1 ? "" : "s");
    us_buf_printf(b, "  tensors: %zu copied, %zu renamed, %zu cut, %zu dropped\n", p->n_copied, p->n_renamed, p->n_sliced, p->n_dropped);
    if (p->cut.cut) us_buf_printf(b, "  LAYERS CUT: %u of %u stay; this is no faithful proxy\n", p->cut.n_new, p->cut.n_old);
    if (p->cut.drop_mtp) us_buf_z(b, "  MTP layers dropped\n");
    if (h && h->table_rows_changed) us_buf_printf(b, "  token tables: %llu rows now name another expert\n", (unsigned long long)h->table_rows_changed);
    for (size_t i = 0; i < p->n_edits; i++) {
        const us_plan_edit *e = &p->edits[i];
        us_buf_printf(b, "  %s: %s: %s -> %s\n", e->file, e->path, shown(e->from, "..."), shown(e->to, e->removed ? "removed" : "..."));
    }
    if (p->n_unknown) us_buf_printf(b, "  %zu tensors that this version does not know were copied as they are\n", p->n_unknown);
    for (size_t i = 0; i < ck->n_left_out; i++) {
        char name[160];
        us_escape_line(ck->left_out[i].name, strlen(ck->left_out[i].name), name, sizeof name);
        us_buf_printf(b, "  not copied: %s\n", name);
    }
    json_rung(&r->json, p, folder, h);
}
