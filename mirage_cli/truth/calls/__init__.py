"""One node as its meaning sees it: values with their element types, inputs, attributes, version and limits."""
