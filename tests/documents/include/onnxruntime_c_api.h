// A stand-in for ONNX Runtime's header of this name, which is in its release archives and not in the wheels that the tests
// install: what docs/recipes.md calls, by its position in the table of functions, which never changes.
#ifndef ORT_STAND_IN
#define ORT_STAND_IN
#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 17
typedef struct OrtEnv OrtEnv;
typedef struct OrtStatus OrtStatus;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtValue OrtValue;
typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;
typedef enum { OrtDeviceAllocator = 0 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;

typedef struct OrtApi {
    void* before_2[2];
    const char* (*GetErrorMessage)(const OrtStatus*);
    OrtStatus* (*CreateEnv)(OrtLoggingLevel, const char* name, OrtEnv**);
    void* before_7[3];
    OrtStatus* (*CreateSession)(const OrtEnv*, const char* path, const OrtSessionOptions*, OrtSession**);
    void* before_9[1];
    OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names, const OrtValue* const* inputs,
                      size_t input_count, const char* const* output_names, size_t output_count, OrtValue** outputs);
    OrtStatus* (*CreateSessionOptions)(OrtSessionOptions**);
    void* before_29[18];
    OrtStatus* (*RegisterCustomOpsLibrary)(OrtSessionOptions*, const char* path, void** handle);
    void* before_49[19];
    OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void* data, size_t bytes, const int64_t* shape,
                                                 size_t rank, ONNXTensorElementDataType, OrtValue**);
    void* before_51[1];
    OrtStatus* (*GetTensorMutableData)(OrtValue*, void** data);
    void* before_69[17];
    OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo**);
} OrtApi;

typedef struct OrtApiBase {
    const OrtApi* (*GetApi)(uint32_t version);
    const char* (*GetVersionString)(void);
} OrtApiBase;

const OrtApiBase* OrtGetApiBase(void);
#endif
