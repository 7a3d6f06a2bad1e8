/* understudy doctor: what this build and this machine are, for bug reports and for people who wonder why something is
 * slow. */
#define _GNU_SOURCE
#define PCRE2_CODE_UNIT_WIDTH 8
#include <cblas.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <pcre2.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <utf8proc.h>
#include <zlib.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "kernels/dispatch.h"
#include "kernels/peaks.h"
#include "model/engine/engine.h"

/* Instruction sets that kernels choose by. */
static const char *const features[] = {"avx2",     "fma",      "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16",
                                       "amx_tile", "amx_bf16", "sha_ni",  "asimd",    "sve",         NULL};

/* Value behind "key ... :" in a file of /proc or /sys, or the first line for key "". */
static void read_value(const char *path, const char *key, char *out, size_t cap) {
    static char line[16384];
    out[0] = 0;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) != 0) continue;
        const char *p = key[0] ? strchr(line, ':') : line;
        if (!p) continue;
        if (key[0]) p++;
        p += strspn(p, " \t");
        us_escape_line(p, strcspn(p, "\n"), out, cap);
        break;
    }
    if (f) fclose(f);
}

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0)) return true;
    return false;
}

typedef struct page {
    us_buf b;
    bool json, first;
} page;

static void entry(page *p, const char *key, const char *value) {
    if (p->json) {
        us_buf_printf(&p->b, "%s  \"%s\": ", p->first ? "" : ",\n", key);
        us_buf_json(&p->b, us_str_z(value));
    } else {
        us_buf_printf(&p->b, "%-19s%s\n", key, value);
    }
    p->first = false;
}

static void entry_number(page *p, const char *key, uint64_t n, const char *text) {
    if (p->json)
        us_buf_printf(&p->b, "%s  \"%s\": %llu", p->first ? "" : ",\n", key, (unsigned long long)n);
    else
        us_buf_printf(&p->b, "%-19s%s\n", key, text);
    p->first = false;
}

static void cpu(page *p) {
    char model[256], flags[8192], found[256] = "";
    read_value("/proc/cpuinfo", "model name", model, sizeof model);
    read_value("/proc/cpuinfo", "flags", flags, sizeof flags);
    if (!flags[0]) read_value("/proc/cpuinfo", "Features", flags, sizeof flags);
    for (int i = 0; features[i]; i++) {
        size_t n = strlen(found);
        if (has_word(flags, features[i])) snprintf(found + n, sizeof found - n, "%s%s", n ? " " : "", features[i]);
    }
    entry(p, "processor", model[0] ? model : "unknown");
    entry(p, "features", found);
    entry(p, "kernels", us_isa_name(us_isa_active()));
    char text[64];
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, sizeof text, "%d of %ld may be used", us_cpu_count(), all);
    entry_number(p, "processors", (uint64_t)us_cpu_count(), text);
}

static void memory(page *p) {
    char text[64], size[24];
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    entry_number(p, "memory", total, us_format_bytes(total, size));
    read_value("/sys/fs/cgroup/memory.max", "", text, sizeof text);
    uint64_t limit;
    if (us_str_to_u64(us_str_z(text), &limit)) entry_number(p, "memory_limit", limit, us_format_bytes(limit, size));
}

static void libraries(page *p) {
    char text[256];
    entry(p, "jansson", JANSSON_VERSION);
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) < (int)sizeof text && pcre2_config(PCRE2_CONFIG_VERSION, text) > 0)
        entry(p, "pcre2", text);
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) < (int)sizeof text &&
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text) > 0)
        entry(p, "pcre2_unicode", text);
    snprintf(text, sizeof text, "%s, Unicode %s", utf8proc_version(), utf8proc_unicode_version());
    entry(p, "utf8proc", text);
    entry(p, "crypto", OpenSSL_version(OPENSSL_VERSION));
    entry(p, "zlib", zlibVersion());
    entry(p, "sqlite", sqlite3_libversion());
    entry(p, "openblas", openblas_get_config());
}

static void entry_rate(page *p, const char *key, double rate, const char *unit) {
    char text[64];
    snprintf(text, sizeof text, "%.1f %s", rate * 1e-9, unit);
    entry_number(p, key, (uint64_t)rate, text);
}

/* What one thread and all threads reach now. */
static void peaks(page *p, us_pool *pool) {
    us_peaks one = us_peaks_measure(NULL), all = us_peaks_measure(pool);
    entry_rate(p, "f32_flops_1", one.f32_flops, "GFLOP/s of f32 multiply-adds, one thread");
    entry_rate(p, "f32_flops", all.f32_flops, "GFLOP/s, all threads");
    entry_rate(p, "read_bytes_1", one.read_bytes, "GB/s read from memory, one thread");
    entry_rate(p, "read_bytes", all.read_bytes, "GB/s, all threads");
    entry_rate(p, "copy_bytes", all.copy_bytes, "GB/s read and written by copying, all threads");
}

static void entry_bytes(page *p, const char *key, uint64_t n) {
    char size[24];
    entry_number(p, key, n, us_format_bytes(n, size));
}

/* Memory that running a checkpoint takes, by part. */
static us_status model(us_cli *cli, page *p, const char *path, us_err *err) {
    static const us_compute kinds[] = {US_COMPUTE_BF16, US_COMPUTE_F32};
    static const char *const keys[] = {"weights_bf16", "weights_f32"};
    us_checkpoint *ck = NULL;
    us_structure *st = NULL;
    us_engine *e = NULL;
    us_status s;
    US_GO(us_checkpoint_open(us_cli_ctx(cli), path, 0, &ck, err));
    US_GO(us_structure_resolve(us_cli_ctx(cli), ck, &st, err));
    for (int i = 0; i < 2; i++) {
        US_GO(us_engine_open(us_cli_ctx(cli), st, &(us_engine_options){.compute = kinds[i]}, &e, err));
        us_engine_size z = us_engine_size_of(e);
        entry_bytes(p, keys[i], z.weights);
        if (i == 0) {
            entry_bytes(p, "largest_layer", z.largest_layer);
            entry_bytes(p, "cache_per_token", z.per_position);
            entry_bytes(p, "state_per_sequence", z.per_sequence);
            char tokens[32];
            snprintf(tokens, sizeof tokens, "%llu tokens", (unsigned long long)us_engine_context(e));
            entry_number(p, "context", us_engine_context(e), tokens);
        }
        us_engine_free(e);
        e = NULL;
    }
done:
    us_engine_free(e);
    us_structure_free(st);
    us_checkpoint_free(ck);
    return s;
}

static us_status run(us_cli *cli, us_err *err) {
    page p = {.json = us_cli_json(cli), .first = true};
    struct utsname u;
    char text[512];
    if (p.json) us_buf_z(&p.b, "{\n");
    entry(&p, "understudy", US_VERSION);
    entry(&p, "compiler", __VERSION__);
    if (uname(&u) == 0) {
        snprintf(text, sizeof text, "%s %s %s", u.sysname, u.release, u.machine);
        entry(&p, "system", text);
    }
    cpu(&p);
    memory(&p);
    libraries(&p);
    if (!us_cli_flag(cli, "no-measure")) peaks(&p, us_ctx_pool(us_cli_ctx(cli)));
    us_status s = us_cli_n_args(cli) ? model(cli, &p, us_cli_arg(cli, 0), err) : US_OK;
    if (p.json) us_buf_z(&p.b, "\n}\n");
    if (s == US_OK) s = us_buf_status(&p.b, err, "describing the machine");
    if (s == US_OK) fwrite(p.b.p, 1, p.b.n, us_cli_out(cli));
    us_buf_free(&p.b);
    return s;
}

static const us_option options[] = {
    {"no-measure", 0, US_OPT_FLAG, NULL, "Do not measure the peaks of processor and memory.", false},
    {0},
};

const us_command us_cmd_doctor = {
    .name = "doctor",
    .summary = "what this build and this machine are, for bug reports",
    .usage = "[CKPT] [options]",
    .description = "Prints versions of the program and its libraries, the processor with the instruction sets that "
                   "matter here, how many processors and how much memory\n"
                   "may be used, and measures what processor and memory reach at this moment. With a checkpoint also the memory that running it takes: weights "
                   "packed as bf16 and as f32, the largest layer (all that --stream holds at once), caches. Nothing is sent anywhere.",
    .options = options,
    .max_args = 1,
    .run = run,
    .examples = "  understudy doctor\n  understudy doctor --json\n  understudy doctor Qwen/Qwen3-30B-A3B\n",
};
