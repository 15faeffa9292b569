// What is computed from the tables of operators: values of symbols, shapes of outputs, messages.
#ifndef MIRAGE_ORT_SHAPES_HPP
#define MIRAGE_ORT_SHAPES_HPP

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "mirage/operators.hpp"

// Returns the status of an expression from the calling function if it is a failure.
#define MIRAGE_TRY(expression) \
    if (::mirage::ort::Status* status_ = (expression)) return status_

namespace mirage {

struct Shape {
    int rank;
    int64_t dims[max_rank];  // -1: unknown
};

inline int64_t elements(const Shape& shape) {
    int64_t count = 1;
    for (int d = 0; d < shape.rank; ++d) count *= shape.dims[d];
    return count;
}

// ---- messages ------------------------------------------------------------------------------------------------------

// Text in a fixed buffer; what does not fit is cut off.
struct Message {
    char text[1024] = "";
    size_t used = 0;

    __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        const int written = vsnprintf(text + used, sizeof text - used, format, arguments);
        va_end(arguments);
        if (written > 0) used = size_t(written) < sizeof text - used ? used + size_t(written) : sizeof text - 1;
    }

    void add_number(const char* format, int64_t number) {
        add("%s%lld", format, static_cast<long long>(number));
    }

    void add_shape(const Shape& shape) {
        add("[");
        for (int d = 0; d < shape.rank; ++d) add_number(d ? ", " : "", shape.dims[d]);
        add("]");
    }

    // A declared shape, such as [2*batch, 64].
    void add_shape(const Tensor& tensor, const char* const* symbols) {
        add("[");
        for (int d = 0; d < tensor.rank; ++d) {
            const Extent& extent = tensor.dims[d];
            const bool number = extent.count == 0 || extent.factor != 1;
            if (d) add(", ");
            if (number) add_number("", extent.factor);
            for (int i = 0; i < extent.count; ++i) add(number || i ? "*%s" : "%s", symbols[extent.symbols[i]]);
        }
        add("]");
    }

    void add_mismatch(const Operator& op, int input, const Shape& found) {
        add("input %d '%s' has shape ", input, op.inputs[input].name);
        add_shape(found);
        add(", expected ");
        add_shape(op.inputs[input], op.symbols);
    }

    void add_symbols(const Operator& op, const int64_t* values) {
        for (int s = 0; s < op.symbol_count; ++s) {
            add(s ? ", %s" : " with %s", op.symbols[s]);
            add_number(" = ", values[s]);
        }
    }
};

// ---- shapes --------------------------------------------------------------------------------------------------------

enum class Known { yes, no, overflow };

// The number an extent is, leaving out one occurrence of the symbol `without` (-1: none). Symbols below 0 are unknown.
inline Known evaluate(const Extent& extent, const int64_t* symbols, int without, int64_t* result) {
    *result = extent.factor;
    for (int i = 0; i < extent.count; ++i) {
        const int symbol = extent.symbols[i];
        if (symbol == without) {
            without = -1;
            continue;
        }
        if (symbols[symbol] < 0) return Known::no;
        if (__builtin_mul_overflow(*result, symbols[symbol], result)) return Known::overflow;
    }
    return Known::yes;
}

// Finds the symbols' values from the inputs' shapes; unknown dimensions give unknown symbols (-1).
inline bool solve(const Operator& op, const Shape* shapes, int64_t* symbols, Message* message) {
    for (int i = 0; i < op.input_count; ++i) {
        if (shapes[i].rank == op.inputs[i].rank) continue;
        message->add_mismatch(op, i, shapes[i]);
        return false;
    }
    for (int s = 0; s < op.symbol_count; ++s) symbols[s] = -1;
    for (int s = 0; s < op.symbol_count; ++s) {
        const Recovery& step = op.recoveries[s];
        if (step.symbol == op.room.symbol) continue;
        const int64_t found = shapes[step.input].dims[step.dim];
        if (step.more != 0) {
            symbols[step.symbol] = found < 0 ? -1 : found + step.more;
            continue;
        }
        int64_t rest = 0;
        const Known known = evaluate(op.inputs[step.input].dims[step.dim], symbols, step.symbol, &rest);
        if (found < 0 || known == Known::no) continue;
        if (known == Known::yes && rest != 0 && found % rest == 0) {
            symbols[step.symbol] = found / rest;
            continue;
        }
        message->add_mismatch(op, step.input, shapes[step.input]);
        if (rest == 0 && found == 0) message->add(": '%s' cannot be told from 0 elements", op.symbols[step.symbol]);
        return false;
    }
    return true;
}

// Compares every known dimension of the inputs with its declaration.
inline bool check(const Operator& op, const Shape* shapes, const int64_t* symbols, Message* message) {
    for (int i = 0; i < op.input_count; ++i) {
        for (int d = 0; d < op.inputs[i].rank; ++d) {
            int64_t expected = 0;
            const Known known = evaluate(op.inputs[i].dims[d], symbols, -1, &expected);
            if (known == Known::no || shapes[i].dims[d] < 0) continue;
            if (known == Known::yes && expected == shapes[i].dims[d]) continue;
            message->add_mismatch(op, i, shapes[i]);
            message->add_symbols(op, symbols);
            return false;
        }
    }
    for (int i = 0; i < op.least_count; ++i) {
        int64_t found = 0;
        if (evaluate(op.least[i].extent, symbols, -1, &found) != Known::yes || found >= op.least[i].number) continue;
        message->add_number("a dimension of which position ", op.least[i].number - 1);
        message->add_number(" is read has ", found);
        message->add_symbols(op, symbols);
        return false;
    }
    return true;
}

inline ort::Status* set_rank(const ort::Api* api, size_t rank, Shape* shape) {
    if (rank > max_rank) return ort::CreateStatus::call(api, ort::invalid_argument, "mirage: more than 16 dimensions");
    shape->rank = int(rank);
    return nullptr;
}

inline ort::Status* read_shape(const ort::Api* api, const ort::TensorInfo* info, Shape* shape) {
    size_t rank = 0;
    MIRAGE_TRY(ort::GetDimensionCount::call(api, info, &rank));
    MIRAGE_TRY(set_rank(api, rank, shape));
    return ort::GetDimensions::call(api, info, shape->dims, rank);
}

}  // namespace mirage

#endif  // MIRAGE_ORT_SHAPES_HPP
