"""The DIJob as it is stored in the annotation of its Workflow, which everything that reads jobs stands on."""
