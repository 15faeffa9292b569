// The rates of this machine's cores. Arguments: threads, and bytes of an array that no cache holds. Each letter that it reads is
// one of `kinds`, done once: it prints how much of that is done in a second, 0 where there is no such thing. Others measure
// something else in between: what is compared is measured in turns, since the speed of a machine changes.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define MIRAGE_ISA native
#include "mirage/cpu/packed.hpp"

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;
#endif
#if defined(__x86_64__)
#define KEPT(value) "+x"(value)
#elif defined(__aarch64__)
#define KEPT(value) "+w"(value)
#else
#define KEPT(value) "+m"(value)
#endif
typedef float Vector __attribute__((vector_size(BYTES)));
constexpr int SUMS = 12;  // in flight: more than begin while one is on its way
constexpr int MOST = 1024;
constexpr long STEPS = 1000000;

static volatile float sink;  // what is computed is used
static int waiting;  // the builtins: <atomic> and <algorithm> take as long to read as half of this to compile
static int threads;
static char* memory;
static long share;
static double begun[MOST], ended[MOST];

static double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void multiply(long) {
  Vector sums[SUMS] = {}, x = {}, y = {};
  asm volatile("" : KEPT(x), KEPT(y));  // what they hold is not known
#pragma GCC unroll 12
  for (int k = 0; k < SUMS; k++) asm volatile("" : KEPT(sums[k]));
  for (long n = 0; n < STEPS; n++) {
#pragma GCC unroll 12
    for (int k = 0; k < SUMS; k++) sums[k] = sums[k] * x + y;
  }
#pragma GCC unroll 12
  for (int k = 0; k < SUMS; k++) asm volatile("" : KEPT(sums[k]));
}

// Products of 16 x 32 x 16 numbers of bfloat16, six of which make one of float32, as mirage/cpu/split.hpp does them: 64 rows and
// 256 summed positions, split, times 320 columns, which the second-level cache holds.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
constexpr long MATRIX = 1024, STEP = 3 * MATRIX, DEEP = 8 * STEP;  // bytes: a matrix, three of a step, a panel's or 16 rows'
constexpr long TALL = 4, WIDE = 20, PASSES = 100, MATRICES = PASSES * TALL * WIDE * 8 * 6;
static char* numbers[MOST];
static bool matrices() {
  constexpr int request = 0x1023, tiles = 18;
  if (syscall(SYS_arch_prctl, request, tiles) != 0) return false;
  for (int t = 0; t < threads; t++) {
    numbers[t] = static_cast<char*>(aligned_alloc(4096, (TALL + WIDE) * DEEP));
    if (!numbers[t]) exit(1);
    memset(numbers[t], 0, (TALL + WIDE) * DEEP);
  }
  return true;
}
#define READ(T, FROM) asm volatile("tileloadd (%0,%1,1), %%tmm" #T ::"r"(FROM), "r"(64l))
static void split(long thread) {
  struct {
    unsigned char palette = 1, none[15] = {};
    unsigned short bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  asm volatile("ldtilecfg %0" ::"m"(shape));
  const char* const all = numbers[thread];
  const auto rows = [](const char* x) {
    READ(4, x);
    READ(5, x + DEEP);
  };
  const auto columns = [](const char* y) {
    READ(6, y);
    READ(7, y + DEEP);
  };
  const auto multiply = [] {
    asm volatile("tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
                 "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
  };
  for (long n = 0; n < PASSES; n++)
    for (long j = 0; j < WIDE; j += 2)
      for (long i = 0; i < TALL; i += 2)
        for (long k = 0; k < DEEP; k += STEP) {
          const char *const x = all + i * DEEP + k, *const y = all + (TALL + j) * DEEP + k;
          rows(x);
          columns(y);
          multiply();
          columns(y + MATRIX);
          multiply();
          rows(x + MATRIX);
          multiply();
          columns(y + 2 * MATRIX);
          multiply();
          rows(x + 2 * MATRIX);
          multiply();
          rows(x);
          multiply();
        }
  asm volatile("tilerelease" ::);
}
#else
constexpr long MATRICES = 0;
static bool matrices() { return false; }
static void split(long) {}
#endif

static void read(long thread) {
  const Vector* v = reinterpret_cast<const Vector*>(memory + thread * share);
  Vector sums[8] = {};
  for (long i = 0; i + 8 <= share / BYTES; i += 8)
    for (int k = 0; k < 8; k++) sums[k] += v[i + k];
  for (int k = 0; k < 8; k++) sink = sums[k][0];
}

// Products of rows with weights of SIDE summed positions and columns, all of them or as often the first one. As in onnxruntime
// all threads share the columns of a product, and meet behind it.
constexpr int SIDE = 768, FEW = 16, MANY = 128, STRIP = mirage::BLOCK_COLS;
constexpr long WEIGHTS = 54 << 20;  // bytes of all weights
enum Weights { FROM_MEMORY, FROM_CACHES, AS_STORED };
alignas(64) static float given[MANY * SIDE], results[MANY * SIDE];
static long met;
static void meet() {
  const long all = (__atomic_fetch_add(&met, 1, __ATOMIC_SEQ_CST) / threads + 1) * threads;
  for (long spins = 0; __atomic_load_n(&met, __ATOMIC_SEQ_CST) < all;)
    if (++spins % 4096 == 0) sched_yield();
}
static long least(long x, long y) { return x < y ? x : y; }
static Weights kept;
template <int ROWS>
static long products() {  // what caches hold is read as fast from the beginning, and many rows take long
  const long all = ROWS > 1 ? least(WEIGHTS, share * threads) : share * threads;  // a row waits for memory alone, so caches are to hold little
  const long held = all / (SIDE * SIDE * 4) / (kept == AS_STORED ? 3 : ROWS > FEW ? 2 : 1);
  return held < 1 ? 1 : held;
}
template <int ROWS, bool STORED>
static void multiply_rows(long thread) {
  const auto rows = mirage::operand(given, SIDE, 1);
  const int each = (SIDE / STRIP + threads - 1) / threads * STRIP;
  const int first = least(SIDE, thread * each), columns = least(SIDE - first, each);
  for (long n = 0; n < products<ROWS>(); n++, meet()) {
    const float* const all = reinterpret_cast<float*>(memory) + (kept == FROM_MEMORY ? n * SIDE * SIDE : 0);
    if constexpr (STORED)
      mirage::contract<mirage::Known<ROWS, ROWS, STRIP, SIDE, 1, 1, SIDE>>(
          results + first, SIDE, ROWS, columns, SIDE, rows, mirage::operand(all + first, 1, SIDE), false);
    else  // what `contract` of packed weights does with whole panels: that compiles what is for others, too
      mirage::packed_parts<mirage::Plain, 1, ROWS, ROWS, true>(
          results + first, SIDE, ROWS, columns, SIDE, rows, all + first * SIDE, SIDE * mirage::PANEL, false);
  }
}

static void write(long thread) { memset(memory + thread * share, 0, share); }

// Keep to a core of its own, where there is one for every thread: for some time two may be given the same one.
static void settle(long thread) {
#if defined(__linux__)
  cpu_set_t allowed, own;
  CPU_ZERO(&own);
  if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) != threads) return;
  for (int core = 0; core < CPU_SETSIZE; core++)
    if (CPU_ISSET(core, &allowed) && thread-- == 0) CPU_SET(core, &own);
  sched_setaffinity(0, sizeof own, &own);
#endif
}

template <void (*part)(long)>
static void* run(void* thread) {
  const long t = reinterpret_cast<long>(thread);
  settle(t);
  for (__atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST); __atomic_load_n(&waiting, __ATOMIC_SEQ_CST) > 0;) sched_yield();
  begun[t] = now();
  part(t);
  ended[t] = now();
  return nullptr;
}

// Seconds in which so many threads do their parts at the same time.
template <void (*part)(long)>
static double seconds(int count) {
  pthread_t all[MOST];
  waiting = count;
  for (long t = 0; t < count; t++)
    if (pthread_create(&all[t], nullptr, run<part>, reinterpret_cast<void*>(t))) exit(1);
  for (int t = 0; t < count; t++) pthread_join(all[t], nullptr);
  double first = begun[0], last = ended[0];
  for (int t = 1; t < count; t++) {
    if (begun[t] < first) first = begun[t];
    if (ended[t] > last) last = ended[t];
  }
  return last - first;
}

// Another array for all threads, for which the system is given `advice` on pages.
static void array(int advice) {
  static int had = -1;
  if (had == advice) return;
  had = advice;
  constexpr long large = 2 << 20;
  const long bytes = ((share * threads + SIDE * SIDE * 4) / large + 1) * large;  // a matrix may be larger than a share
  free(memory);
  memory = static_cast<char*>(aligned_alloc(large, bytes));
  if (!memory) exit(1);
  madvise(memory, bytes, advice);
  seconds<write>(threads);
}

static double multiplied(int count) { return count * 2.0 * STEPS * SUMS * (BYTES / 4) / seconds<multiply>(count); }
static double split_products() { return threads * 2.0 * 16 * 32 * 16 * MATRICES / 6 / seconds<split>(threads); }
static double reading(int count) {
  array(MADV_NOHUGEPAGE);
  return double(share) * count / seconds<read>(count);
}
// The same by one thread, which has the shares of all.
template <double (*kind)()>
static double alone() {
  const int all = threads;
  share *= all, threads = 1, met = 0;
  const double found = kind();
  share /= all, threads = all, met = 0;
  return found;
}
template <int ROWS, Weights KIND>
static double rows_multiplied() {
  array(MADV_HUGEPAGE);
  kept = KIND;
  return 2.0 * ROWS * SIDE * SIDE * products<ROWS>() / seconds<multiply_rows<ROWS, KIND == AS_STORED>>(threads);
}

// Multiply-adds, times two, of one core and of all at once, and such that are split for matrix instructions; bytes that all read of
// memory in small pages, and that one does; multiply-adds, times two, of all cores in products with packed weights: 16 rows with such that
// caches hold, 1 (by one core, too), 16 and 128 with such in memory; and 128 rows with others that caches hold.
static double kinds(int letter, bool instructions) {
  switch (letter) {
    case 'o': return multiplied(1);
    case 'a': return multiplied(threads);
    case 'x': return instructions ? split_products() : 0.0;
    case 'r': return reading(threads);
    case 'i': return reading(1);
    case 'q': return alone<rows_multiplied<1, FROM_MEMORY>>();
    case 'p': return rows_multiplied<1, FROM_MEMORY>();
    case 'f': return rows_multiplied<FEW, FROM_CACHES>();
    case 'c': return rows_multiplied<FEW, FROM_MEMORY>();
    case 'm': return rows_multiplied<MANY, FROM_MEMORY>();
    case 's': return rows_multiplied<MANY, AS_STORED>();
  }
  exit(1);
}

int main(int, char** arguments) {
  threads = atoi(arguments[1]);
  if (threads < 1 || threads > MOST) return 1;
  share = atol(arguments[2]) / threads / 4096 * 4096;
  const bool instructions = matrices();
  for (int letter; (letter = getchar()) != EOF; fflush(stdout)) printf("%.6g\n", kinds(letter, instructions));
  return 0;
}
