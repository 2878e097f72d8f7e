// What the host passes to the kernels in rows.cu. Both sides read this file.
#pragma once

namespace millrace::cuda {

// Positions of a block of the KV cache.
constexpr int kBlock = 16;
// Threads of a block in each kernel.
constexpr int kProductThreads = 256, kAttendThreads = 128, kRowThreads = 256, kDrawThreads = 1024;
// Rows that one product reads its matrix for.
constexpr int kMostRows = 4;

// One new token of a lane. `random` and the fields before it decide how the next token is drawn.
struct StepRow {
  int token, position;
  // Where its key and value go.
  int cell;
  // Positions that it sees, itself included.
  int length;
  // Only tokens below this are drawn.
  int below;
  // 0 takes the likeliest.
  float temperature;
  double random;
};

// out = onto + norm(x) weight^T + bias, or with gates: silu of the first half of the columns times the second.
struct Product {
  const void* x;       // [rows, width]
  const void* weight;  // [columns, width]; with gates [2 columns, width]
  const void* bias;    // [columns], [2 columns], or null
  const void* onto;    // [rows, columns] or null
  const void* norm;    // [width] or null
  void* out;           // [rows, columns]
  float epsilon;
  int width, columns;
  // Warps that share a column.
  int warps;
};

// Attention of one new token a row: its heads are normalised and turned, its key and value cached.
struct Attend {
  const void* qkv;  // [rows, (heads + 2 groups) head_width]
  void *keys, *values;  // [cells, groups head_width]
  const StepRow* rows;
  const int* tables;  // [rows, table]
  int table;
  const void *query_norm, *key_norm;  // [head_width] or null
  float epsilon;
  const float *cos, *sin;  // [positions, head_width]
  // What each share of a row's positions came to: [rows, groups, splits, heads / groups, head_width + 2].
  float* parts;
  // Shares that are done, 0 between launches: [rows, groups].
  int* done;
  void* out;  // [rows, heads head_width]
  int heads, groups, splits;
};

// Rows of one operation between products.
struct Rows {
  const void* x;
  const void* weight;
  void* out;
  float epsilon;
  // Numbers of a row of `out`.
  int width;
};

// out[row] = table[token]
struct Embed {
  const void* table;  // [vocabulary, width]
  const StepRow* rows;
  void* out;  // [rows, width]
  int width;
};

struct Drawn {
  int token;
  float logprob;
};

struct Draw {
  const void* logits;  // [rows, vocabulary]
  const StepRow* rows;
  Drawn* out;  // [rows]
  int vocabulary;
};

}  // namespace millrace::cuda
