/* `understudy plan`: accelerators for RL training and rollout of a model and of each proxy size, and which sizes are legal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "model/structure.h"
#include "proxy/device.h"
#include "proxy/layout.h"

#define GB 1e9

enum { SIZES_MAX = 16, WORLD_MAX = 16384 };

typedef struct plan {
    us_cli *c;
    us_checkpoint *ck;
    us_config cfg;
    us_counts n;
    us_training t;
    us_engine engine;
    uint32_t bytes;               /* a parameter: weight, gradient, optimizer */
    us_layout given;              /* world 0 = search */
    us_layout original;           /* layout found for the original: what EP scaling starts from */
    uint32_t ep, tp;              /* for the legality of sizes; 0 = not given */
    uint64_t batch;               /* sequences a step: rollout engines that hold all at once */
    bool fp8_block;
    uint32_t sizes[SIZES_MAX];
    int n_sizes;
    const char *device;
} plan;

/* One size of the model, planned. */
typedef struct variant {
    us_counts n;
    uint64_t floor;
    bool found[2];                /* without and with the optimizer on the host */
    us_layout layout[2];
    us_moments m[2];
    bool rollout_found;
    us_err why;                   /* the layout that was asked for cannot be */
    us_rollout r;
} variant;

static void plan_variant(const plan *p, uint32_t experts, variant *v) {
    memset(v, 0, sizeof *v);
    v->n = us_counts_with_experts(&p->n, experts);
    v->floor = us_static_floor(&p->n, experts, p->bytes, p->t.memory, p->t.usable);
    for (int off = 0; off < 2; off++) {
        if (p->given.world) {
            us_layout l = p->given;
            v->found[off] = us_layout_check(&l, &v->why) == US_OK && us_layout_check_model(&l, &v->n, &v->why) == US_OK;
            if (!v->found[off]) continue;
            v->layout[off] = l;
            us_training_memory(&v->n, &p->t, &l, off, &v->m[off]);
        } else {
            v->found[off] = us_training_search(&v->n, &p->t, off, WORLD_MAX, &v->layout[off], &v->m[off]);
        }
    }
    v->rollout_found = us_rollout_size(&v->n, &p->t, 2, &v->r);
}

/* ---- options ---- */

static us_status read_device(plan *p, us_err *err) {
    const char *name = us_cli_string(p->c, "device", NULL);
    double gb = us_cli_double(p->c, "memory", 0);
    p->t.per_node = 8;
    if (name) {
        const us_device *d = us_device_find(name);
        if (!d) {
            us_fail(err, US_E_INVAL, "device", "the device \"%s\" is not known", name);
            us_err_todo(err, "understudy plan --device help lists them; or give --memory GB");
            return US_E_INVAL;
        }
        p->device = d->name;
        p->t.memory = d->memory_gb * GB;
        p->t.per_node = d->per_node;
    }
    if (gb > 0) p->t.memory = gb * GB;
    if (!(p->t.memory >= GB) || p->t.memory > 1e6 * GB) return us_cli_usage(p->c, err, "give --device NAME or --memory GB (1 to 1000000)");
    int64_t per = us_cli_int(p->c, "devices-per-node", p->t.per_node);
    if (per < 1 || per > 1024) return us_cli_usage(p->c, err, "--devices-per-node must be 1 to 1024");
    p->t.per_node = (uint32_t)per;
    return US_OK;
}

static us_status positive(plan *p, const char *name, int64_t def, int64_t max, uint64_t *out, us_err *err) {
    int64_t v = us_cli_int(p->c, name, def);
    if (v < 1 || v > max) return us_cli_usage(p->c, err, "--%s must be 1 to %lld", name, (long long)max);
    *out = (uint64_t)v;
    return US_OK;
}

static us_status read_layout(plan *p, us_err *err) {
    static const char *const names[] = {"tp", "pp", "cp", "ep", "etp"};
    uint32_t *const fields[] = {&p->given.tp, &p->given.pp, &p->given.cp, &p->given.ep, &p->given.etp};
    uint32_t *const fixed[] = {&p->t.fixed.tp, &p->t.fixed.pp, &p->t.fixed.cp, &p->t.fixed.ep, &p->t.fixed.etp};
    for (int i = 0; i < 5; i++) {
        uint64_t v = 1;
        US_TRY(positive(p, names[i], 1, 65536, &v, err));
        *fields[i] = (uint32_t)v;
        if (us_cli_int(p->c, names[i], 0) > 0) *fixed[i] = (uint32_t)v;
    }
    p->ep = us_cli_int(p->c, "ep", 0) > 0 ? p->given.ep : 0;
    p->tp = us_cli_int(p->c, "tp", 0) > 0 ? p->given.tp : 0;
    uint64_t world = 1;
    US_TRY(positive(p, "world", 1, 1 << 20, &world, err));
    if (us_cli_int(p->c, "world", 0) > 0) {
        p->given.world = (uint32_t)world;
        us_layout check = p->given;
        us_status s = us_layout_check(&check, err);
        if (s != US_OK) return us_err_todo(err, "change the widths or --world"), s;
    }
    return US_OK;
}

static us_status read_options(plan *p, us_err *err) {
    const char *optimizer = us_cli_string(p->c, "optimizer", "adam"), *engine = us_cli_string(p->c, "engine", "any");
    US_TRY(read_device(p, err));
    p->t.usable = us_cli_double(p->c, "usable", 0.85);
    if (!(p->t.usable > 0.05 && p->t.usable <= 1)) return us_cli_usage(p->c, err, "--usable must be above 0.05 and at most 1");
    if (!us_optimizer_parse(optimizer, &p->t.optimizer)) return us_cli_usage(p->c, err, "--optimizer must be adam, adam8bit, muon or sgd");
    if (!us_engine_parse(engine, &p->engine)) return us_cli_usage(p->c, err, "--engine must be megatron, vllm, sglang, transformers or any");
    uint64_t copies = 2;
    US_TRY(positive(p, "sequence", 4096, 1 << 24, &p->t.sequence, err));
    US_TRY(positive(p, "longest", (int64_t)p->t.sequence, 1 << 24, &p->t.longest, err));
    US_TRY(positive(p, "batch", 256, 1 << 24, &p->batch, err));
    US_TRY(positive(p, "logprob-copies", 2, 8, &copies, err));
    p->t.logprob_copies = (uint32_t)copies;
    p->t.recompute = !us_cli_flag(p->c, "no-recompute");
    p->bytes = 6 + us_optimizer_state_bytes(p->t.optimizer);
    return read_layout(p, err);
}

static us_status legal(const plan *p, int64_t e, us_err *err) {
    return us_engine_check(&p->n, p->cfg.family->router, p->engine, p->ep, p->tp, p->fp8_block, e, err);
}

/* Sizes asked for, or E/2, E/4, E/8 at the nearest legal size. */
static us_status read_sizes(plan *p, us_err *err) {
    const char *list = us_cli_string(p->c, "experts", NULL);
    if (!p->n.n_experts) return US_OK;
    if (list) {
        for (const char *at = list; *at;) {
            char *end;
            long v = strtol(at, &end, 10);
            if (end == at || (*end && *end != ',')) return us_cli_usage(p->c, err, "--experts takes numbers with commas between them");
            US_TRY(legal(p, v, err));
            if (p->n_sizes == SIZES_MAX) return us_cli_usage(p->c, err, "--experts takes at most %d sizes", SIZES_MAX);
            p->sizes[p->n_sizes++] = (uint32_t)v;
            at = *end ? end + 1 : end;
        }
        return US_OK;
    }
    for (uint32_t part = 2; part <= 8; part *= 2) {
        uint32_t wish = p->n.n_experts / part;
        for (uint32_t d = 0; d < p->n.n_experts; d++) { /* nearest; the larger of two at the same distance */
            uint32_t e = legal(p, (int64_t)wish + d, NULL) == US_OK ? wish + d : wish >= d && legal(p, (int64_t)wish - d, NULL) == US_OK ? wish - d : 0;
            if (!e) continue;
            if (e < p->n.n_experts && (!p->n_sizes || p->sizes[p->n_sizes - 1] != e)) p->sizes[p->n_sizes++] = e;
            break;
        }
    }
    return US_OK;
}

/* ---- JSON ---- */

static void put_moments(us_buf *b, const us_moments *m, const us_training *t) {
    us_buf_printf(b,
                  "\"weights_gb\":%.3f,\"gradients_gb\":%.3f,\"optimizer_gb\":%.3f,\"activations_gb\":%.3f,\"logits_gb\":%.3f,\"logprobs_gb\":%.3f,\"moments\":{\"load_gb\":%.3f,"
                  "\"logprobs_gb\":%.3f,\"first_step_gb\":%.3f,\"steady_gb\":%.3f},\"peak_gb\":%.3f,\"fits\":%s,\"host_gb_per_node\":%.3f",
                  m->weights / GB, m->gradients / GB, m->optimizer / GB, m->activations / GB, m->logits / GB, m->logprobs / GB, m->load / GB, m->logprob_pass / GB, m->first_step / GB,
                  m->steady / GB, m->peak / GB, m->peak <= t->memory * t->usable ? "true" : "false", m->host_per_node / GB);
}

static const char out_of_reach[] = "faults that need more ranks than the proxy has (collective time-outs, switch faults); an expert load above E'/k times the mean; memory faults when a "
                                   "rank holds another number of experts; anything that needs the original's ability";

/* Devices of as many engines as hold the whole batch at once. */
static uint64_t batch_devices(const plan *p, const variant *v) {
    uint64_t each = v->r.sequences ? v->r.sequences : 1;
    return (p->batch + each - 1) / each * v->r.devices;
}

/* Spec 4.3: E' = rE, EP' = r EP, N' = rN keep what a rank does; at least 2 where the original had 2. The original is the layout given, or found. */
static void put_scaling(us_buf *b, const plan *p, uint32_t experts, const variant *v) {
    const us_layout *o = p->given.world ? &p->given : &p->original;
    uint32_t E = p->n.n_experts;
    if (!o->world || experts == E) return;
    double ep = (double)o->ep * experts / E, world = (double)o->world * experts / E;
    bool whole = ep == floor(ep) && world == floor(world) && ep >= 1;
    us_layout l = *o;
    l.ep = (uint32_t)ep;
    l.world = (uint32_t)world;
    us_err why = {0};
    if (!whole) us_fail(&why, US_E_REFUSED, "layout", "EP %u and %u devices do not scale by %u/%u to whole numbers", o->ep, o->world, experts, E);
    else if (o->ep >= 2 && l.ep < 2) us_fail(&why, US_E_REFUSED, "ep-lost", "EP would become 1: all expert communication is lost; keep EP 2 with fewer experts a rank");
    else if (us_layout_check(&l, &why) != US_OK || us_layout_check_model(&l, &v->n, &why) != US_OK) whole = false;
    us_buf_printf(b, ",\"ep_scaling\":{\"from\":{\"devices\":%u,\"ep\":%u},\"devices\":%.2f,\"ep\":%.2f,\"same_per_rank\":%s", o->world, o->ep, world, ep, whole && why.code == US_OK ? "true" : "false");
    if (why.code != US_OK) us_buf_z(b, ",\"why\":"), us_buf_json(b, us_str_z(why.what));
    us_buf_c(b, '}');
}

/* The floors at r = 1, 1/2, 1/4, 1/8, whether or not such a size is legal. */
static void put_floors(us_buf *b, const plan *p) {
    us_buf_z(b, ",\"static_floors\":[");
    for (int part = 1; part <= 8; part *= 2) {
        us_counts n = p->n;
        n.routed /= (uint64_t)part;
        us_buf_printf(b, "%s{\"ratio\":%.3f,\"static_floor\":%llu}", part > 1 ? "," : "", 1.0 / part, (unsigned long long)us_static_floor(&n, n.n_experts, p->bytes, p->t.memory, p->t.usable));
    }
    us_buf_c(b, ']');
}

static void put_training(us_buf *b, const plan *p, const variant *v) {
    if (v->why.code != US_OK) {
        us_buf_printf(b, "\"layout_refused\":{\"class\":\"%s\",\"why\":", v->why.cls);
        us_buf_json(b, us_str_z(v->why.what));
        us_buf_z(b, "},");
    }
    us_buf_z(b, "\"training\":{");
    for (int off = 0; off < 2; off++) {
        us_buf_printf(b, "%s\"%s\":", off ? "," : "", off ? "optimizer_offload" : "no_offload");
        if (!v->found[off]) {
            us_buf_z(b, "null");
            continue;
        }
        const us_layout *l = &v->layout[off];
        us_buf_printf(b, "{\"devices\":%u,\"nodes\":%u,\"ep_wider_than_node\":%s,\"layout\":{\"tp\":%u,\"pp\":%u,\"cp\":%u,\"ep\":%u,\"etp\":%u,\"dp\":%u,\"edp\":%u},", l->world,
                      (l->world + p->t.per_node - 1) / p->t.per_node, l->ep * l->etp > p->t.per_node ? "true" : "false", l->tp, l->pp, l->cp, l->ep, l->etp, l->dp, l->edp);
        put_moments(b, &v->m[off], &p->t);
        us_buf_z(b, "}");
    }
    us_buf_z(b, "},\"rollout\":");
    if (!v->rollout_found) us_buf_z(b, "null");
    else
        us_buf_printf(b, "{\"devices\":%u,\"layout\":{\"tp\":%u,\"dp\":%u,\"ep\":%u},\"redundant_experts\":%u,\"batch_devices\":%llu,\"weights_gb\":%.3f,\"kv_bytes_per_token\":%.0f,\"window_bytes_per_sequence\":%.0f,\"tokens\":%llu,\"sequences\":%llu}", v->r.devices, v->r.tp, v->r.dp, v->r.ep,
                      v->r.redundant, (unsigned long long)batch_devices(p, v), v->r.weights / GB, v->r.kv_per_token, v->r.window_kv, (unsigned long long)v->r.tokens, (unsigned long long)v->r.sequences);
}

static void put_variant(us_buf *b, const plan *p, uint32_t experts, const variant *v) {
    us_buf_printf(b, "{\"experts\":%u,\"parameters\":{\"total\":%llu,\"routed\":%llu,\"other\":%llu,\"active\":%llu},\"static_floor\":%llu,", experts, (unsigned long long)v->n.total,
                  (unsigned long long)v->n.routed, (unsigned long long)v->n.other, (unsigned long long)v->n.active, (unsigned long long)v->floor);
    put_training(b, p, v);
    if (p->n.n_experts) {
        uint32_t ep = p->ep ? p->ep : v->found[0] ? v->layout[0].ep : 1;
        double ratio = us_margin_ratio(p->n.n_experts, experts, p->n.top_k);
        us_buf_printf(b, ",\"load_ceiling\":%.3f", (double)experts / p->n.top_k);
        if (isfinite(ratio)) us_buf_printf(b, ",\"margin_ratio\":%.3f", ratio);
        put_scaling(b, p, experts, v);
        us_buf_printf(b, ",\"redundant_experts\":%u,\"redundant_bytes\":%llu", us_redundant_experts(experts, ep),
                      (unsigned long long)us_redundant_experts(experts, ep) * p->n.n_moe_layers * p->n.per_expert * 2);
    }
    us_buf_c(b, '}');
}

static void put_json(us_buf *b, plan *p) {
    variant v;
    plan_variant(p, p->n.n_experts, &v);
    p->original = v.found[0] ? v.layout[0] : v.found[1] ? v.layout[1] : (us_layout){0};
    us_buf_printf(b, "{\"family\":\"%s\",\"memory_gb\":%.3f,\"usable\":%.3f,\"devices_per_node\":%u,\"device\":", p->cfg.family->name, p->t.memory / GB, p->t.usable, p->t.per_node);
    if (p->device) us_buf_json(b, us_str_z(p->device));
    else us_buf_z(b, "null");
    us_buf_printf(b, ",\"optimizer\":\"%s\",\"bytes_per_parameter\":%u,\"sequence\":%llu,\"batch\":%llu,\"longest\":%llu,\"logprob_copies\":%u,\"recompute\":%s,\"static_floor\":%llu", us_optimizer_name(p->t.optimizer),
                  p->bytes, (unsigned long long)p->t.sequence, (unsigned long long)p->batch, (unsigned long long)p->t.longest, p->t.logprob_copies, p->t.recompute ? "true" : "false", (unsigned long long)v.floor);
    us_buf_printf(b, ",\"buckets\":{\"tp_sharded\":%llu,\"replicated\":%llu,\"routed\":%llu},\"legal\":[", (unsigned long long)p->n.tp_sharded, (unsigned long long)p->n.replicated,
                  (unsigned long long)p->n.routed);
    bool first = true;
    for (uint32_t e = 1; e <= p->n.n_experts; e++)
        if (legal(p, e, NULL) == US_OK) us_buf_printf(b, first ? "%u" : ",%u", e), first = false;
    us_buf_z(b, "],\"illegal\":[");
    first = true;
    for (uint32_t e = 1; e <= p->n.n_experts; e++) {
        us_err why = {0};
        if (legal(p, e, &why) == US_OK) continue;
        us_buf_printf(b, "%s{\"experts\":%u,\"class\":\"%s\",\"why\":", first ? "" : ",", e, why.cls);
        us_buf_json(b, us_str_z(why.what));
        us_buf_c(b, '}');
        first = false;
    }
    us_buf_z(b, "],\"original\":");
    put_variant(b, p, p->n.n_experts, &v);
    us_buf_z(b, ",\"proxies\":[");
    for (int i = 0; i < p->n_sizes; i++) {
        plan_variant(p, p->sizes[i], &v);
        if (i) us_buf_c(b, ',');
        put_variant(b, p, p->sizes[i], &v);
    }
    us_buf_z(b, "]");
    put_floors(b, p);
    us_buf_z(b, ",\"out_of_reach\":");
    us_buf_json(b, us_str_z(out_of_reach));
    us_buf_z(b, "}\n");
}

/* ---- text ---- */

static void put_row(us_buf *b, const plan *p, const char *label, uint32_t experts, const variant *v) {
    char total[24];
    us_buf_printf(b, "%-10s %7u  %8s  %6llu", label, experts, us_format_count(v->n.total, total), (unsigned long long)v->floor);
    for (int off = 0; off < 2; off++) {
        const us_layout *l = &v->layout[off];
        if (!v->found[off]) {
            us_buf_printf(b, "  %-30s", "none fits");
            continue;
        }
        char text[96], cp[16] = "", etp[16] = "";
        if (l->cp > 1) snprintf(cp, sizeof cp, " CP%u", l->cp);
        if (l->etp > 1) snprintf(etp, sizeof etp, " ETP%u", l->etp);
        snprintf(text, sizeof text, "%u (TP%u PP%u%s EP%u%s)%s", l->world, l->tp, l->pp, cp, l->ep, etp, v->m[off].peak <= p->t.memory * p->t.usable ? "" : " too small");
        us_buf_printf(b, "  %-30s", text);
    }
    if (v->rollout_found) us_buf_printf(b, "  %u (TP%u DP%u EP%u), batch %llu", v->r.devices, v->r.tp, v->r.dp, v->r.ep, (unsigned long long)batch_devices(p, v));
    us_buf_c(b, '\n');
    if (v->why.code != US_OK) us_buf_printf(b, "  the layout asked for cannot be: %s\n", v->why.what);
}

static void put_memory_rows(us_buf *b, const plan *p, const variant *v) {
    for (int off = 0; off < 2; off++) {
        if (!v->found[off]) continue;
        const us_moments *m = &v->m[off];
        us_buf_printf(b, "  %-22s load %.1f  log-probs %.1f  first step %.1f  steady %.1f GB of %.1f usable", off ? "optimizer on the host:" : "all on the device:", m->load / GB,
                      m->logprob_pass / GB, m->first_step / GB, m->steady / GB, p->t.memory * p->t.usable / GB);
        if (off) us_buf_printf(b, "; host %.0f GB a node", m->host_per_node / GB);
        us_buf_c(b, '\n');
    }
}

static void put_legal(us_buf *b, const plan *p) {
    us_buf_z(b, "\nlegal sizes   ");
    uint32_t shown = 0;
    for (uint32_t e = 1; e <= p->n.n_experts; e++) {
        if (legal(p, e, NULL) != US_OK) continue;
        if (shown++ < 40) us_buf_printf(b, shown > 1 ? ", %u" : "%u", e);
    }
    us_buf_z(b, shown > 40 ? " ... (--json lists all)\n" : "\n");
    us_err last = {0};
    for (uint32_t e = 1; e <= p->n.n_experts; e++) { /* one example of each reason */
        us_err why = {0};
        if (legal(p, e, &why) == US_OK || strcmp(why.cls, last.cls) == 0) continue;
        us_buf_printf(b, "  not %-6u  %s [%s]\n", e, why.what, why.cls);
        last = why;
        if (strcmp(why.cls, "groups-divide") == 0) break;
    }
}

static void put_text(us_buf *b, const plan *p) {
    variant v;
    char t[24];
    us_buf_printf(b, "%s: %s parameters", p->cfg.family->name, us_format_count(p->n.total, t));
    if (p->n.n_experts) us_buf_printf(b, ", %u experts top-%u in %u layers", p->n.n_experts, p->n.top_k, p->n.n_moe_layers);
    us_buf_printf(b, "\nassumed: %s%s%.0f GB a device, %.0f %% of it usable, %u devices a node, %llu tokens a sequence and micro-batch, longest packed sample %llu, batch of %llu sequences, optimizer %s (%u bytes a parameter), %s\n\n",
                  p->device ? p->device : "", p->device ? ", " : "", p->t.memory / GB, p->t.usable * 100, p->t.per_node, (unsigned long long)p->t.sequence, (unsigned long long)p->t.longest, (unsigned long long)p->batch,
                  us_optimizer_name(p->t.optimizer), p->bytes, p->t.recompute ? "full recomputation" : "no recomputation");
    us_buf_printf(b, "%-10s %7s  %8s  %6s  %-30s  %-30s  %s\n", "", "experts", "params", "floor", "training", "training, optimizer on host", "rollout engine");
    plan_variant(p, p->n.n_experts, &v);
    put_row(b, p, "original", p->n.n_experts, &v);
    put_memory_rows(b, p, &v);
    for (int i = 0; i < p->n_sizes; i++) {
        plan_variant(p, p->sizes[i], &v);
        put_row(b, p, "proxy", p->sizes[i], &v);
        put_memory_rows(b, p, &v);
        double ratio = us_margin_ratio(p->n.n_experts, p->sizes[i], p->n.top_k);
        if (isfinite(ratio)) us_buf_printf(b, "  routing margin x%.2f, so flips from noise are rarer by about that; ", ratio);
        else us_buf_z(b, "  ");
        us_buf_printf(b, "load of an expert is at most %.1f times the mean (original %.1f)\n", (double)p->sizes[i] / p->n.top_k, (double)p->n.n_experts / p->n.top_k);
    }
    if (p->n.n_experts && !p->n_sizes) us_buf_z(b, "  no smaller size is legal here\n");
    us_buf_z(b, "floor: bytes a parameter x parameters / usable memory, no layout at all. GB are 1e9 bytes.\n");
    if (!p->n.n_experts) return;
    put_legal(b, p);
    us_buf_z(b, "\nexpert-parallel scaling: with E' = rE, EP' = rEP and rN devices, experts a rank, tokens an expert and bytes a rank stay what they are in the original;\n"
                "keep EP' >= 2 where the original had EP >= 2. The KV cache and the backbone are the original's. Faults that need more ranks than the proxy has\n"
                "(collective time-outs, switch faults) are out of its reach. The size says nothing of ability: measure it.\n");
}

/* ---- run ---- */

static void list_devices(us_cli *c) {
    FILE *out = us_cli_out(c);
    if (us_cli_json(c)) fprintf(out, "[");
    for (const us_device *d = us_devices; d->name; d++) {
        if (us_cli_json(c)) fprintf(out, "%s{\"name\":\"%s\",\"memory_gb\":%.0f,\"devices_per_node\":%u}", d == us_devices ? "" : ",", d->name, d->memory_gb, d->per_node);
        else fprintf(out, "%-8s %4.0f GB  %2u a node  %s\n", d->name, d->memory_gb, d->per_node, d->note);
    }
    if (us_cli_json(c)) fprintf(out, "]\n");
}

/* FP8 in square blocks of 128: tensor parallelism must not cut a block. */
static bool is_fp8_block(const plan *p) {
    uint64_t side = 0;
    us_json_ref q = us_config_get(&p->cfg, "quantization_config");
    return us_json_u64(p->cfg.doc, us_json_at(p->cfg.doc, us_json_get(p->cfg.doc, q, "weight_block_size"), 0), &side) && side == 128;
}

static us_status run(us_cli *c, us_err *err) {
    const char *device = us_cli_string(c, "device", NULL);
    if (device && strcmp(device, "help") == 0) {
        list_devices(c);
        return US_OK;
    }
    if (us_cli_n_args(c) != 1) return us_cli_usage(c, err, "name a checkpoint or its config.json");
    plan p = {.c = c};
    us_buf b = {0};
    us_status s;
    US_GO(read_options(&p, err));
    US_GO(us_checkpoint_open(us_cli_ctx(c), us_cli_arg(c, 0), US_CK_CONFIG_ONLY, &p.ck, err));
    US_GO(us_config_open(&p.ck->config, &p.cfg, err));
    US_GO(us_count_config(&p.cfg, &p.n, err));
    p.fp8_block = is_fp8_block(&p);
    US_GO(read_sizes(&p, err));
    if (us_cli_json(c)) put_json(&b, &p);
    else put_text(&b, &p);
    s = us_buf_status(&b, err, "writing the plan");
    if (s == US_OK) fwrite(b.p, 1, b.n, us_cli_out(c));
done:
    us_buf_free(&b);
    us_checkpoint_free(p.ck);
    return s;
}

static const us_option options[] = {
    {"device", 'd', US_OPT_STRING, "NAME", "accelerator by name; help lists them", false},
    {"memory", 'm', US_OPT_DOUBLE, "GB", "memory of one device in GB (1e9 bytes), instead of or above --device", false},
    {"devices-per-node", 0, US_OPT_INT, "N", "devices a node (default: the device's, else 8)", false},
    {"usable", 0, US_OPT_DOUBLE, "F", "fraction of the memory that may be planned (default 0.85)", false},
    {"experts", 'e', US_OPT_STRING, "N,...", "proxy sizes (default: the legal sizes nearest to E/2, E/4, E/8)", false},
    {"optimizer", 0, US_OPT_STRING, "NAME", "adam (default; 18 bytes a parameter), adam8bit (12), muon (14) or sgd (10)", false},
    {"sequence", 0, US_OPT_INT, "TOKENS", "tokens of a sequence in rollout and of a micro-batch in training (default 4096)", false},
    {"batch", 0, US_OPT_INT, "N", "sequences a step, prompts x samples: sizes the rollout (default 256)", false},
    {"longest", 0, US_OPT_INT, "TOKENS", "longest packed sample whose log-probs are computed (default: --sequence)", false},
    {"logprob-copies", 0, US_OPT_INT, "N", "f32 copies of logits alive during log-probs (default 2)", false},
    {"no-recompute", 0, US_OPT_FLAG, NULL, "keep activations of every layer (selective recomputation) instead of recomputing all", false},
    {"engine", 0, US_OPT_STRING, "NAME", "whose limits decide which sizes are legal: megatron, vllm, sglang, transformers (default: the family's own rules)", false},
    {"world", 0, US_OPT_INT, "N", "plan this many devices with the widths given, instead of searching for the least", false},
    {"tp", 0, US_OPT_INT, "N", "tensor parallel width; like the four below, the search keeps it", false},
    {"pp", 0, US_OPT_INT, "N", "pipeline stages", false},
    {"cp", 0, US_OPT_INT, "N", "context parallel width", false},
    {"ep", 0, US_OPT_INT, "N", "expert parallel width", false},
    {"etp", 0, US_OPT_INT, "N", "expert tensor parallel width", false},
    {0},
};

const us_command us_cmd_plan = {
    .name = "plan",
    .summary = "accelerators needed for the model and each proxy size, and which sizes are legal",
    .usage = "CKPT|config.json --device NAME|--memory GB [options]",
    .description = "Counts parameters from config.json alone and says how many accelerators RL training and rollout need: with the optimizer on the device and on the "
                   "host, at load, log-probs, first optimizer step and in steady state; for the original and for each proxy size; and why each illegal size is illegal.",
    .options = options,
    .min_args = 0,
    .max_args = 1,
    .run = run,
    .examples = "understudy plan config.json --device 910B\nunderstudy plan config.json --memory 80 --engine vllm --ep 8 --json",
};
